//! A server's certificates, as qemu and nbdkit name the files.

use std::{
    fmt, fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use pagefold_executor::Memory;
use rustls::{
    CertificateError, Error as TlsError, RootCertStore, ServerConfig,
    client::verify_server_cert_signed_by_trust_anchor,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, UnixTime, pem::PemObject},
    server::{NoServerSessionStorage, ParsedCertificate, UnbufferedServerConnection, WebPkiClientVerifier},
};

use super::layer::{IDLE_BYTES, Layer};

const CA_CERT: &str = "ca-cert.pem";
const CA_CRL: &str = "ca-crl.pem";
const SERVER_CERT: &str = "server-cert.pem";
const SERVER_KEY: &str = "server-key.pem";

/// Larger files than this hold no certificates.
const MOST_FILE_BYTES: u64 = 16 << 20;

/// Why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CertificatesError {
    /// A file is missing or cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file has no PEM section of the kind that it should have.
    #[error("{} holds no {what} in PEM form", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
        /// Its expected content.
        what: &'static str,
    },
    /// The certificate has expired or is not valid yet.
    #[error("the certificate {} {when}: make a new one", path.display())]
    Time {
        /// The file.
        path: PathBuf,
        /// Since when, or until when.
        when: String,
    },
    /// The key is not that of the certificate.
    #[error("{} is not the key of the certificate {}", key.display(), certificate.display())]
    Mismatch {
        /// The file of the key.
        key: PathBuf,
        /// The file of the certificate.
        certificate: PathBuf,
    },
    /// The certificate is not signed by the authority whose certificate is next to it.
    #[error("{} is not signed by {}, so no client would accept it", certificate.display(), ca.display())]
    Unsigned {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The file of the authority.
        ca: PathBuf,
    },
    /// A file cannot be used for another reason.
    #[error("cannot use {}: {why}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
}

/// The certificates and the key with which a server does TLS 1.2 and 1.3, read from a directory:
///
/// ```text
/// server-cert.pem  the server's certificate, and those between it and the authority's
/// server-key.pem   its private key, without a passphrase
/// ca-cert.pem      the authority: clients' certificates must be signed by it, if they are asked for
/// ca-crl.pem       certificates of clients that the authority has revoked; may be missing
/// ```
pub struct Certificates {
    directory: PathBuf,
    verify_peer: bool,
    current: Mutex<Arc<ServerConfig>>,
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { directory, verify_peer, .. } = self;
        f.debug_struct("Certificates").field("directory", directory).field("verify_peer", verify_peer).finish()
    }
}

impl Certificates {
    /// The names of the files.
    pub const FILES: [&str; 4] = [SERVER_CERT, SERVER_KEY, CA_CERT, CA_CRL];

    /// Reads the files in `directory`. If `verify_peer`, clients must have a certificate that the
    /// authority in `ca-cert.pem` has signed; otherwise, they are not asked for one.
    ///
    /// # Errors
    /// A file is missing or cannot be used, the key and the certificate do not belong together, or the
    /// certificate is not valid now.
    pub fn read(directory: impl Into<PathBuf>, verify_peer: bool) -> Result<Self, CertificatesError> {
        let directory = directory.into();
        let current = Mutex::new(Arc::new(configuration(&directory, verify_peer)?));
        Ok(Self { directory, verify_peer, current })
    }

    /// Reads the files again, for clients that connect later. After an error, the earlier ones are
    /// used.
    ///
    /// # Errors
    /// Those of [`read`](Self::read).
    pub fn read_again(&self) -> Result<(), CertificatesError> {
        let again = Arc::new(configuration(&self.directory, self.verify_peer)?);
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = again;
        Ok(())
    }

    /// Returns whether clients must have a certificate.
    pub fn verifies_peers(&self) -> bool {
        self.verify_peer
    }

    /// Returns the path of the private key if all users of the system can read it.
    pub fn readable_key(&self) -> Option<PathBuf> {
        let path = self.directory.join(SERVER_KEY);
        let mode = fs::metadata(&path).map_or(0, |found| found.mode());
        (mode & 0o004 != 0).then_some(path)
    }

    /// Begins TLS with one client, which may take `record_time` for each record. Returns `None` if
    /// there is no memory for it.
    pub(crate) fn layer(&self, memory: &Arc<Memory>, record_time: Duration) -> io::Result<Option<Layer>> {
        let Some(taken) = memory.take_more_idle(IDLE_BYTES) else { return Ok(None) };
        let current = Arc::clone(&self.current.lock().unwrap_or_else(PoisonError::into_inner));
        let connection = UnbufferedServerConnection::new(current).map_err(io::Error::other)?;
        Ok(Some(Layer::new(connection, memory, record_time, taken)))
    }
}

fn configuration(directory: &Path, verify_peer: bool) -> Result<ServerConfig, CertificatesError> {
    let file = |name: &str| directory.join(name);
    let unusable =
        |name: &str, error: &dyn fmt::Display| CertificatesError::Unusable { path: file(name), why: error.to_string() };
    let chain = certificates(&file(SERVER_CERT))?;
    let key = read(&file(SERVER_KEY))?;
    let key = PrivateKeyDer::from_pem_slice(&key).map_err(|_| {
        let what = "private key without a passphrase";
        CertificatesError::Empty { path: file(SERVER_KEY), what }
    })?;
    // Without client certificates, a certificate that a public authority has signed is enough.
    let has_ca = verify_peer || file(CA_CERT).exists();
    let mut authorities = RootCertStore::empty();
    if has_ca {
        for authority in certificates(&file(CA_CERT))? {
            authorities.add(authority).map_err(|error| unusable(CA_CERT, &error))?;
        }
    }
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| unusable(SERVER_CERT, &error))?;
    let builder = if verify_peer {
        let mut verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(authorities.clone()), Arc::clone(&provider));
        if file(CA_CRL).exists() {
            // An authority without a list has revoked no certificate.
            verifier = verifier.with_crls(revoked(&file(CA_CRL))?).allow_unknown_revocation_status();
        }
        builder.with_client_cert_verifier(
            verifier.build().map_err(|error| unusable(if file(CA_CRL).exists() { CA_CRL } else { CA_CERT }, &error))?,
        )
    } else {
        builder.with_no_client_auth()
    };
    let first = chain.first().cloned();
    let between = chain.get(1..).unwrap_or_default().to_vec();
    let mut config = builder.with_single_cert(chain, key).map_err(|error| match error {
        TlsError::InconsistentKeys(_) => {
            CertificatesError::Mismatch { key: file(SERVER_KEY), certificate: file(SERVER_CERT) }
        }
        TlsError::InvalidCertificate(_) => unusable(SERVER_CERT, &error),
        error => unusable(SERVER_KEY, &error),
    })?;
    if let Some(first) = first {
        check(&first, &between, &authorities, &provider).map_err(|error| match error {
            TlsError::InvalidCertificate(error) => match time(&error) {
                Some(when) => CertificatesError::Time { path: file(SERVER_CERT), when },
                None if has_ca => CertificatesError::Unsigned { certificate: file(SERVER_CERT), ca: file(CA_CERT) },
                None => unusable(SERVER_CERT, &error),
            },
            error => unusable(SERVER_CERT, &error),
        })?;
    }
    // No sessions are kept for resumption: clients connect rarely and stay long.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// Checks a certificate as a client would, except for its name. Returns only errors that any client
/// would find: clients may have the authority's certificate even if it is not here.
fn check(
    certificate: &CertificateDer<'_>,
    between: &[CertificateDer<'_>],
    authorities: &RootCertStore,
    provider: &CryptoProvider,
) -> Result<(), TlsError> {
    let certificate = ParsedCertificate::try_from(certificate)?;
    let algorithms = provider.signature_verification_algorithms.all;
    let found =
        verify_server_cert_signed_by_trust_anchor(&certificate, authorities, between, UnixTime::now(), algorithms);
    match found {
        Err(TlsError::InvalidCertificate(error)) => match &error {
            error if time(error).is_some() => Err(TlsError::InvalidCertificate(error.clone())),
            CertificateError::UnknownIssuer | CertificateError::BadSignature if !authorities.is_empty() => {
                Err(TlsError::InvalidCertificate(error))
            }
            // Some clients are less strict.
            _ => Ok(()),
        },
        result => result,
    }
}

/// Says how a certificate's time differs from now, if that is what is wrong with it.
fn time(error: &CertificateError) -> Option<String> {
    let days = |from: &UnixTime, to: &UnixTime| to.as_secs().saturating_sub(from.as_secs()) / 86_400;
    match error {
        CertificateError::Expired => Some("has expired".to_owned()),
        CertificateError::ExpiredContext { time, not_after } => {
            Some(format!("expired {} days ago", days(not_after, time)))
        }
        CertificateError::NotValidYet => Some("is not valid yet".to_owned()),
        CertificateError::NotValidYetContext { time, not_before } => {
            Some(format!("is valid only in {} days, by this machine's clock", days(time, not_before) + 1))
        }
        _ => None,
    }
}

fn read(path: &Path) -> Result<Vec<u8>, CertificatesError> {
    let failed = |source| CertificatesError::Read { path: path.into(), source };
    let len_bytes = fs::metadata(path).map_err(failed)?.len();
    if len_bytes > MOST_FILE_BYTES {
        return Err(failed(io::Error::new(io::ErrorKind::FileTooLarge, format!("it has {len_bytes} bytes"))));
    }
    fs::read(path).map_err(failed)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, CertificatesError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(path)?).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(CertificatesError::Empty { path: path.into(), what: "certificate" }),
        Err(error) => Err(CertificatesError::Unusable { path: path.into(), why: error.to_string() }),
    }
}

fn revoked(path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, CertificatesError> {
    let found: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(&read(path)?).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(CertificatesError::Empty { path: path.into(), what: "list of revoked certificates" }),
        Err(error) => Err(CertificatesError::Unusable { path: path.into(), why: error.to_string() }),
    }
}
