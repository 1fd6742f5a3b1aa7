//! Tokens and passwords for a registry.

use std::{
    collections::HashMap,
    env,
    path::PathBuf,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use docker_credential::{CredentialRetrievalError, DockerCredential, get_credential_from_reader};
use serde::Deserialize;
use ureq::http::{HeaderValue, Method, StatusCode, header};
use url::Url;

use crate::{
    error::{Error, Result},
    file,
    http::{Client, Outgoing, Reply, server},
    location::is_loopback,
    patience::Failure,
};

const MOST_TOKEN_BYTES: u64 = 1 << 20;

/// The validity of a token if the server does not state it.
const USUAL_VALID: Duration = Duration::from_secs(60);

/// The longest time for which a token is used.
const LONGEST_VALID: Duration = Duration::from_secs(24 * 3600);

/// A token is renewed this long before it expires.
const EARLIER: Duration = Duration::from_secs(5);

/// The authorization for a registry, renewed when it expires.
pub(crate) struct Tokens {
    /// The name of the registry in docker's configuration.
    server: String,
    look_up: Box<LookUp>,
    state: Mutex<State>,
}

/// Returns the credential for the registry of this name.
type LookUp = dyn Fn(&str) -> Result<Option<DockerCredential>> + Send + Sync;

#[derive(Default)]
struct State {
    value: Option<HeaderValue>,
    until: Option<Instant>,
    /// `None`: not looked up yet.
    credential: Option<Option<DockerCredential>>,
}

impl Tokens {
    pub(crate) fn new(server: String) -> Self {
        Self { server, look_up: Box::new(credential), state: Mutex::default() }
    }

    pub(crate) fn authorization(&self) -> Option<HeaderValue> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.value.clone().filter(|_| state.until.is_none_or(|until| Instant::now() < until))
    }

    /// Answers a challenge. Returns whether there is now an authorization other than `used`.
    pub(crate) fn challenged(
        &self,
        client: &Client,
        refused: &Reply,
        used: Option<&HeaderValue>,
        until: Instant,
    ) -> Result<bool, Failure> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have renewed it.
        if state.value.is_some() && state.value.as_ref() != used && state.until.is_none_or(|end| Instant::now() < end) {
            return Ok(true);
        }
        // A credential helper may return a new credential after the authorization expired.
        if state.credential.is_none() || state.value.is_some() {
            match (self.look_up)(&self.server) {
                Ok(credential) => state.credential = Some(credential),
                Err(error) if state.credential.is_none() => return Err(error.into()),
                Err(_) => {}
            }
        }
        let credential = state.credential.as_ref().and_then(Option::as_ref);
        let challenges = refused.headers.get_all(header::WWW_AUTHENTICATE).iter();
        for challenge in challenges.filter_map(|value| Challenge::parse(value.to_str().ok()?)) {
            let (value, end) = match (&*challenge.scheme, credential) {
                ("bearer", _) => {
                    let token = token(client, &refused.url, &challenge, credential, until)?;
                    let valid = token.expires_in.map_or(USUAL_VALID, Duration::from_secs).min(LONGEST_VALID);
                    let end = Instant::now() + valid.saturating_sub(EARLIER).max(valid / 2);
                    (secret(format!("Bearer {}", token.value()), &refused.url)?, Some(end))
                }
                ("basic", Some(DockerCredential::UsernamePassword(user, password))) => {
                    (basic(user, password, &refused.url)?, None)
                }
                _ => continue,
            };
            let is_other = used != Some(&value);
            (state.value, state.until) = (Some(value), end);
            return Ok(is_other);
        }
        Ok(false)
    }
}

/// Returns a header that is never printed.
fn secret(text: String, url: &Url) -> Result<HeaderValue, Failure> {
    let value = HeaderValue::try_from(text);
    let mut value = value.map_err(|_| server(url, "the token or password cannot be sent"))?;
    value.set_sensitive(true);
    Ok(value)
}

fn basic(user: &str, password: &str, url: &Url) -> Result<HeaderValue, Failure> {
    secret(format!("Basic {}", STANDARD.encode(format!("{user}:{password}"))), url)
}

#[derive(Deserialize)]
struct Token {
    token: Option<String>,
    access_token: Option<String>,
    expires_in: Option<u64>,
}

impl Token {
    fn value(&self) -> &str {
        self.token.as_deref().or(self.access_token.as_deref()).unwrap_or_default()
    }
}

/// Requests a token from the server that a challenge names.
fn token(
    client: &Client,
    registry: &Url,
    challenge: &Challenge,
    credential: Option<&DockerCredential>,
    until: Instant,
) -> Result<Token, Failure> {
    let wrong = |what: &str| Failure::from(server(registry, what));
    let realm = challenge.parameters.get("realm").and_then(|realm| Url::parse(realm).ok());
    let mut realm = realm.ok_or_else(|| wrong("refers to no server for tokens"))?;
    let is_local = is_loopback(registry) && is_loopback(&realm) && realm.scheme() == "http";
    if realm.scheme() != "https" && !is_local {
        return Err(wrong("refers to a server for tokens without https"));
    }
    let mut fields: Vec<(&str, &str)> = Vec::new();
    fields.extend(challenge.parameters.get("service").map(|value| ("service", value.as_str())));
    let scope = challenge.parameters.get("scope").map_or("", String::as_str);
    let reply = match credential {
        Some(DockerCredential::IdentityToken(refresh)) => {
            fields.extend((!scope.is_empty()).then_some(("scope", scope)));
            fields.extend([("grant_type", "refresh_token"), ("refresh_token", refresh), ("client_id", "pagefold")]);
            let mut form = Url::parse("x:").expect("a URL");
            form.query_pairs_mut().extend_pairs(fields);
            let form = form.query().unwrap_or_default().to_owned().into_bytes();
            let kind = HeaderValue::from_static("application/x-www-form-urlencoded");
            let open = || -> Box<dyn std::io::Read> { Box::new(std::io::Cursor::new(form.clone())) };
            let body = Outgoing { len_bytes: form.len() as u64, open: &open };
            client.send(&Method::POST, &realm, &[(header::CONTENT_TYPE, kind)], &[], Some(&body))?
        }
        _ => {
            // One field for each repository.
            fields.extend(scope.split_ascii_whitespace().map(|scope| ("scope", scope)));
            realm.query_pairs_mut().extend_pairs(fields);
            let authorization = match credential {
                Some(DockerCredential::UsernamePassword(user, password)) => Some(basic(user, password, registry)?),
                _ => None,
            };
            let own: Vec<_> = authorization.map(|value| (header::AUTHORIZATION, value)).into_iter().collect();
            client.send(&Method::GET, &realm, &[], &own, None)?
        }
    };
    if reply.status != StatusCode::OK {
        return Err(reply.failure("no token for the registry"));
    }
    let url = reply.url.clone();
    let token: Token = serde_json::from_slice(&reply.read_all(MOST_TOKEN_BYTES, until)?)
        .map_err(|_| server(&url, "the response is not a token"))?;
    match token.value() {
        "" => Err(server(&url, "the response has no token").into()),
        _ => Ok(token),
    }
}

/// The content of a `WWW-Authenticate` header.
struct Challenge {
    /// In lower case.
    scheme: String,
    parameters: HashMap<String, String>,
}

impl Challenge {
    /// Parses `SCHEME NAME="VALUE",NAME=VALUE`.
    fn parse(text: &str) -> Option<Self> {
        let (scheme, mut rest) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
        let mut parameters = HashMap::new();
        while let Some((name, after)) = rest.split_once('=') {
            let value;
            if let Some(quoted) = after.trim_start().strip_prefix('"') {
                let mut text = String::new();
                let mut letters = quoted.char_indices();
                let end = loop {
                    match letters.next()? {
                        (_, '\\') => text.push(letters.next()?.1),
                        (at, '"') => break at,
                        (_, letter) => text.push(letter),
                    }
                };
                (value, rest) = (text, &quoted[end + 1..]);
            } else {
                let (plain, others) = after.split_once(',').unwrap_or((after, ""));
                (value, rest) = (plain.trim().to_owned(), others);
            }
            parameters.insert(name.trim_matches([' ', ',', '\t']).to_ascii_lowercase(), value);
        }
        Some(Self { scheme: scheme.to_ascii_lowercase(), parameters })
    }
}

/// Returns the credential for a registry from podman's or docker's configuration.
fn credential(server: &str) -> Result<Option<DockerCredential>> {
    let variable = |name: &str| env::var_os(name).map(PathBuf::from);
    let podman =
        variable("REGISTRY_AUTH_FILE").or_else(|| Some(variable("XDG_RUNTIME_DIR")?.join("containers/auth.json")));
    let docker = variable("DOCKER_CONFIG").or_else(|| Some(variable("HOME")?.join(".docker")));
    for path in [podman, docker.map(|directory| directory.join("config.json"))].into_iter().flatten() {
        let Ok(text) = file::text(&path) else { continue };
        // Errors of a helper may contain what it printed, and are not shown.
        let failed = |what: &str| Error::Location { location: path.display().to_string(), what: what.to_owned() };
        match get_credential_from_reader(text.as_bytes(), server) {
            Ok(credential) => return Ok(Some(credential)),
            Err(CredentialRetrievalError::NoCredentialConfigured) => {}
            Err(CredentialRetrievalError::HelperFailure { stdout, .. }) if stdout.contains("not found") => {}
            Err(CredentialRetrievalError::HelperFailure { helper, .. }) => {
                return Err(failed(&format!("{helper} failed for {server}")));
            }
            Err(CredentialRetrievalError::HelperCommunicationError) => {
                return Err(failed(&format!("cannot run the credential helper for {server}")));
            }
            Err(_) => return Err(failed(&format!("the credential for {server} cannot be read"))),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn challenges() {
        let challenge = Challenge::parse(
            "Bearer realm=\"https://auth/token?a=b,c\",service=\"r \\\"x\\\"\", scope=repository:a/b:pull , error=x",
        )
        .expect("a challenge");
        assert_eq!(challenge.scheme, "bearer");
        let mut parameters: Vec<_> = challenge.parameters.iter().map(|(name, value)| (&**name, &**value)).collect();
        parameters.sort_unstable();
        let expected = [
            ("error", "x"),
            ("realm", "https://auth/token?a=b,c"),
            ("scope", "repository:a/b:pull"),
            ("service", "r \"x\""),
        ];
        assert_eq!(parameters, expected);
        assert_eq!(Challenge::parse("Basic").expect("a challenge").scheme, "basic");
    }

    /// A password from a credential helper may expire, as a token does.
    #[test]
    fn credentials_are_looked_up_again() {
        let web = pagefold_testing::web::Server::start(|_| {
            pagefold_testing::web::Reply::status(401).with("www-authenticate", "Basic realm=\"x\"")
        });
        let client = Client::new();
        let url = Url::parse(&web.url("/v2/")).expect("a URL");
        let number = std::sync::atomic::AtomicU32::new(0);
        let look_up = move |_: &str| {
            let number = number.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Ok(Some(DockerCredential::UsernamePassword("user".to_owned(), number.to_string())))
        };
        let tokens = Tokens { look_up: Box::new(look_up), ..Tokens::new("x".to_owned()) };
        let own = |used: Option<&HeaderValue>| Vec::from_iter(used.map(|value| (header::AUTHORIZATION, value.clone())));
        let mut used = None;
        for _ in 0..3 {
            let refused = client.send(&Method::GET, &url, &[], &own(used.as_ref()), None).expect("a reply");
            let until = Instant::now() + Duration::from_secs(10);
            assert!(tokens.challenged(&client, &refused, used.as_ref(), until).expect("a challenge"));
            assert_ne!(used, tokens.authorization());
            used = tokens.authorization();
        }
    }

    proptest! {
        #[test]
        fn hostile_challenges(text in "(Bearer )?[a-z=\", \\\\é]{0,60}") {
            let _ = Challenge::parse(&text);
        }
    }
}
