//! Certificates for tests, in files with the names that qemu, nbdkit and libnbd use.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevocationReason, RevokedCertParams, SerialNumber, date_time_ymd,
};

/// The serial number of every client's certificate.
const CLIENT: u64 = 7;

/// When certificates are valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Valid {
    /// Now.
    Now,
    /// No longer.
    Past,
    /// Not yet.
    Future,
}

/// A certificate authority. All its certificates are for `localhost` and `127.0.0.1`.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

#[expect(clippy::expect_used, clippy::missing_panics_doc, clippy::new_without_default, reason = "tests use this")]
impl Authority {
    /// Creates an authority with a key of its own.
    pub fn new() -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "Test authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key).expect("a certificate").pem();
        Self { issuer: Issuer::new(params, key), certificate }
    }

    /// Writes a server's files into a directory, together with the authority's certificate.
    pub fn server(&self, directory: &Path, valid: Valid) {
        self.write(directory, "server", ExtendedKeyUsagePurpose::ServerAuth, valid);
    }

    /// Writes a client's files into a directory, together with the authority's certificate.
    pub fn client(&self, directory: &Path, valid: Valid) {
        self.write(directory, "client", ExtendedKeyUsagePurpose::ClientAuth, valid);
    }

    /// Writes the authority's certificate into a directory.
    pub fn certificate(&self, directory: &Path) {
        fs::create_dir_all(directory).expect("a directory");
        fs::write(directory.join("ca-cert.pem"), &self.certificate).expect("a file");
    }

    /// Writes a list that revokes the certificates of all clients, or of none, into a directory.
    pub fn revoke(&self, directory: &Path, clients: bool) {
        let client = RevokedCertParams {
            serial_number: SerialNumber::from(CLIENT),
            revocation_time: date_time_ymd(2020, 1, 1),
            reason_code: Some(RevocationReason::KeyCompromise),
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(2100, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: clients.then_some(client).into_iter().collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = list.signed_by(&self.issuer).expect("a list");
        fs::write(directory.join("ca-crl.pem"), list.pem().expect("PEM")).expect("a file");
    }

    fn write(&self, directory: &Path, name: &str, purpose: ExtendedKeyUsagePurpose, valid: Valid) {
        let key = KeyPair::generate().expect("a key");
        let names = ["localhost", "127.0.0.1"].map(str::to_owned);
        let mut params = CertificateParams::new(names).expect("names");
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![purpose];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.serial_number = Some(SerialNumber::from(CLIENT));
        let (from, to) = match valid {
            Valid::Now => (2020, 2100),
            Valid::Past => (2020, 2021),
            Valid::Future => (2090, 2100),
        };
        (params.not_before, params.not_after) = (date_time_ymd(from, 1, 1), date_time_ymd(to, 1, 1));
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        self.certificate(directory);
        fs::write(directory.join(format!("{name}-cert.pem")), certificate.pem()).expect("a file");
        let path = directory.join(format!("{name}-key.pem"));
        fs::write(&path, key.serialize_pem()).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("its mode");
    }
}
