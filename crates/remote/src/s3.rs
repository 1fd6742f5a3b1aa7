//! Objects in buckets of S3 and servers like it.

use std::{
    collections::HashMap,
    env,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use rusty_s3::{
    Bucket, Credentials, S3Action, UrlStyle,
    actions::{GetObject, HeadObject, PutObject},
};
use ureq::http::{HeaderValue, Method};
use url::Url;

use crate::{
    access::Access,
    error::{Error, Result},
    file,
    http::{Client, Reply, same},
    patience::Failure,
};

/// How long a signature is valid. Each request has its own.
const VALID: Duration = Duration::from_secs(900);

/// A bucket with the credentials for it.
pub(crate) struct Store {
    bucket: Bucket,
    credentials: Mutex<Option<Credentials>>,
    variable: Box<Variable>,
}

/// Returns a variable of the environment.
type Variable = dyn Fn(&str) -> Option<String> + Send + Sync;

/// An object in a bucket.
pub(crate) struct Object {
    pub(crate) store: Arc<Store>,
    pub(crate) key: String,
}

impl Store {
    /// Returns a bucket as the environment and the profile describe it.
    pub(crate) fn of_environment(bucket: &str) -> Result<Self> {
        Self::new(bucket, Box::new(|name| env::var(name).ok().filter(|value| !value.is_empty())))
    }

    fn new(bucket: &str, variable: Box<Variable>) -> Result<Self> {
        let wrong = |what: String| Error::Location { location: format!("s3://{bucket}"), what };
        let (credentials, config) = profile(&variable)?;
        let setting = |names: [&str; 2], key: &str| {
            names.iter().find_map(|name| variable(name)).or_else(|| config.get(key).cloned())
        };
        let region = setting(["AWS_REGION", "AWS_DEFAULT_REGION"], "region").unwrap_or_else(|| "us-east-1".to_owned());
        let endpoint = setting(["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"], "endpoint_url");
        // Servers other than Amazon's seldom have a host name for each bucket, and no certificate
        // covers a bucket whose name has dots.
        let style = match endpoint {
            None if !bucket.contains('.') => UrlStyle::VirtualHost,
            _ => UrlStyle::Path,
        };
        let endpoint = endpoint.unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
        let endpoint = Url::parse(&endpoint).map_err(|error| {
            let shown = pagefold_storage::shown(Path::new(&endpoint));
            wrong(format!("endpoint {shown}: {error}"))
        })?;
        if !endpoint.username().is_empty() || endpoint.password().is_some() {
            return Err(wrong("the endpoint must not have a user name or password".to_owned()));
        }
        let bucket =
            Bucket::new(endpoint, style, bucket.to_owned(), region).map_err(|error| wrong(error.to_string()))?;
        let credentials = Mutex::new(credentials_of(&variable, &credentials));
        Ok(Self { bucket, credentials, variable })
    }

    /// Looks up the credentials again: those of a session expire.
    fn renew(&self) -> Result<()> {
        let (settings, _) = profile(&self.variable)?;
        let credentials = credentials_of(&self.variable, &settings);
        *self.credentials.lock().unwrap_or_else(PoisonError::into_inner) = credentials;
        Ok(())
    }

    /// Returns the bucket's URL.
    pub(crate) fn url(&self) -> &Url {
        self.bucket.base_url()
    }
}

/// Returns the credentials of the environment, or else of a profile.
fn credentials_of(variable: &Variable, profile: &Settings) -> Option<Credentials> {
    if let Some((key, secret)) = variable("AWS_ACCESS_KEY_ID").zip(variable("AWS_SECRET_ACCESS_KEY")) {
        return Some(of_key(key, secret, variable("AWS_SESSION_TOKEN")));
    }
    let (key, secret) = profile.get("aws_access_key_id").zip(profile.get("aws_secret_access_key"))?;
    Some(of_key(key.clone(), secret.clone(), profile.get("aws_session_token").cloned()))
}

/// Returns the credentials that a URL was signed with.
fn signed_with(url: &Url) -> Vec<(String, String)> {
    let names = ["X-Amz-Credential", "X-Amz-Security-Token"];
    url.query_pairs().into_owned().filter(|(name, _)| names.contains(&name.as_str())).collect()
}

fn of_key(key: String, secret: String, token: Option<String>) -> Credentials {
    match token {
        Some(token) => Credentials::new_with_token(key, secret, token),
        None => Credentials::new(key, secret),
    }
}

impl Access for Object {
    fn url(&self, method: &Method) -> Url {
        let credentials = self.store.credentials.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let credentials = credentials.as_ref();
        let bucket = &self.store.bucket;
        match *method {
            Method::HEAD => HeadObject::new(bucket, credentials, &self.key).sign(VALID),
            Method::PUT => PutObject::new(bucket, credentials, &self.key).sign(VALID),
            _ => GetObject::new(bucket, credentials, &self.key).sign(VALID),
        }
    }

    fn challenged(
        &self,
        _client: &Client,
        refused: &Reply,
        _used: Option<&HeaderValue>,
        _until: Instant,
    ) -> Result<bool, Failure> {
        if !same(&refused.url, self.store.url()) {
            return Ok(false);
        }
        self.store.renew()?;
        Ok(signed_with(&refused.url) != signed_with(&self.url(&Method::GET)))
    }
}

type Settings = HashMap<String, String>;

/// Returns the profile's settings from the files of credentials and of configuration.
fn profile(variable: &Variable) -> Result<(Settings, Settings)> {
    let name = variable("AWS_PROFILE").unwrap_or_else(|| "default".to_owned());
    let path = |given: &str, usual: &str| {
        variable(given).map(PathBuf::from).or_else(|| Some(PathBuf::from(variable("HOME")?).join(".aws").join(usual)))
    };
    let read = |path: Option<PathBuf>, headings: &[String]| match path.map(|path| (file::text(&path), path)) {
        None => Ok(Settings::new()),
        Some((Ok(text), _)) => Ok(settings(&text, headings)),
        Some((Err(error), _)) if error.kind() == std::io::ErrorKind::NotFound => Ok(Settings::new()),
        Some((Err(source), path)) => Err(Error::Io { path: path.display().to_string(), source }),
    };
    let credentials = read(path("AWS_SHARED_CREDENTIALS_FILE", "credentials"), std::slice::from_ref(&name))?;
    let config = read(path("AWS_CONFIG_FILE", "config"), &[format!("profile {name}"), name])?;
    Ok((credentials, config))
}

/// Returns the settings below one of the headings.
fn settings(text: &str, headings: &[String]) -> Settings {
    let (mut found, mut is_inside) = (Settings::new(), false);
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])) {
        if let Some(heading) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            is_inside = headings.iter().any(|wanted| wanted == heading.trim());
        } else if let Some((key, value)) = line.split_once('=').filter(|_| is_inside) {
            found.insert(key.trim().to_owned(), value.trim().to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn store(bucket: &str, variables: &[(&str, &str)]) -> Store {
        let variables: HashMap<_, _> =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Store::new(bucket, Box::new(move |name| variables.get(name).cloned())).expect("a bucket")
    }

    fn url(store: Store, method: &Method) -> Url {
        Object { store: Arc::new(store), key: "a b/c".to_owned() }.url(method)
    }

    #[test]
    fn styles_of_urls() {
        for (bucket, variables, expected) in [
            ("b", &[("AWS_REGION", "eu-west-1")][..], "https://b.s3.eu-west-1.amazonaws.com/a%20b/c"),
            ("b.c", &[], "https://s3.us-east-1.amazonaws.com/b.c/a%20b/c"),
            ("b", &[("AWS_ENDPOINT_URL", "http://[::1]:90")], "http://[::1]:90/b/a%20b/c"),
        ] {
            assert_eq!(url(store(bucket, variables), &Method::GET).as_str(), expected);
        }
    }

    #[test]
    fn credentials_come_from_the_environment_or_a_profile() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, config) = (folder.path().join("credentials"), folder.path().join("config"));
        fs::write(&file, "[default]\naws_access_key_id=X\naws_secret_access_key=Y\n# [p]\n[p]\naws_access_key_id = P\naws_secret_access_key = S\naws_session_token = T\n")
            .expect("a file");
        fs::write(&config, "[profile p]\nregion = r\n").expect("a file");
        let (file, config) = (file.display().to_string(), config.display().to_string());
        let files = [("AWS_SHARED_CREDENTIALS_FILE", &*file), ("AWS_CONFIG_FILE", &*config)];
        let with = |more: &[(&'static str, &str)]| {
            let all: Vec<_> = files.iter().copied().chain(more.iter().copied()).collect();
            let query: HashMap<_, _> = url(store("b", &all), &Method::PUT).query_pairs().into_owned().collect();
            (query["X-Amz-Credential"].clone(), query.get("X-Amz-Security-Token").cloned())
        };
        let (credential, token) = with(&[("AWS_PROFILE", "p")]);
        assert!(credential.starts_with("P/") && credential.contains("/r/s3/"), "{credential}");
        assert_eq!(token.as_deref(), Some("T"));
        assert!(with(&[]).0.starts_with("X/"));
        let (credential, token) = with(&[("AWS_ACCESS_KEY_ID", "E"), ("AWS_SECRET_ACCESS_KEY", "F")]);
        assert!(credential.starts_with("E/") && token.is_none(), "{credential}");
    }
    #[test]
    fn credentials_are_looked_up_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("credentials");
        let key = |key: &str| {
            fs::write(&file, format!("[default]\naws_access_key_id={key}\naws_secret_access_key=S\n")).expect("a file");
        };
        key("OLD");
        let path = file.display().to_string();
        let none = folder.path().join("none").display().to_string();
        let store = store("b", &[("AWS_SHARED_CREDENTIALS_FILE", &path), ("AWS_CONFIG_FILE", &none)]);
        let object = Object { store: Arc::new(store), key: "k".to_owned() };
        let old = object.url(&Method::GET);
        key("NEW");
        object.store.renew().expect("renewed");
        let new = object.url(&Method::GET);
        assert!(new.query().is_some_and(|query| query.contains("Credential=NEW")), "{new}");
        assert_ne!(signed_with(&old), signed_with(&new));
    }

    #[test]
    fn errors_of_endpoints_show_no_password() {
        for endpoint in ["https://user:secret@:x", "https://user:secret@host", "user:secret@host"] {
            let variable = move |name: &str| (name == "AWS_ENDPOINT_URL").then(|| endpoint.to_owned());
            let Err(error) = Store::new("b", Box::new(variable)) else { panic!("refused: {endpoint}") };
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
}
