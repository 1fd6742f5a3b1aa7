//! Mirrors of registries, from the configuration that other programs for containers read:
//! `registries.conf` of podman, skopeo and others, and `hosts.toml` of containerd.

use std::{
    env, fs, io,
    path::{self, Path, PathBuf},
};

use toml_edit::{Document, Item, TableLike};
use ureq::http::{HeaderName, HeaderValue};
use url::Url;

use crate::{
    error::{Error, Result},
    file,
    location::{Reference, is_loopback},
};

/// The directory of containerd's files, with a directory for each registry.
const HOSTS: &str = "/etc/containerd/certs.d";

/// The directory for all registries that have none of their own.
const ANY_HOST: &str = "_default";

/// Files that name mirrors of registries.
#[derive(Clone, Debug, Default)]
pub struct Mirrors {
    /// Files in the format of `registries.conf`. Entries of later ones replace those of earlier
    /// ones for the same prefix.
    registries: Vec<PathBuf>,
    hosts: Option<PathBuf>,
}

/// A server that has the images of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mirror {
    /// Where the protocol's paths begin.
    pub(crate) base: Url,
    /// The path of the repository there.
    pub(crate) repository: String,
    /// The registry to name in requests, if the mirror serves several.
    pub(crate) namespace: Option<String>,
    /// Headers of each request.
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) has: Has,
}

/// The requests that a mirror gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Has {
    /// Requests for what a tag refers to.
    pub(crate) tags: bool,
    /// Requests for content with a sum.
    pub(crate) sums: bool,
}

impl Has {
    pub(crate) const ALL: Self = Self { tags: true, sums: true };
}

/// Where the images of a repository are.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Places {
    /// In the order in which they are asked.
    pub(crate) mirrors: Vec<Mirror>,
    /// Whether the last one replaces the registry itself, which then gets no requests.
    pub(crate) is_replaced: bool,
    /// Where images are stored, if not in the registry itself.
    pub(crate) home: Option<Mirror>,
}

impl Mirrors {
    /// Returns no mirrors.
    pub fn none() -> Self {
        Self::default()
    }

    /// Returns the mirrors in these files: `registries` have the format of `registries.conf`, and
    /// `hosts` has a directory with a `hosts.toml` for each registry.
    pub fn of_files(registries: Vec<PathBuf>, hosts: Option<PathBuf>) -> Self {
        Self { registries, hosts }
    }

    /// Returns the mirrors of the system and of the user, or of the environment.
    pub fn of_system() -> Self {
        // The files are read later, possibly from another working directory.
        let given = |name: &str| env::var_os(name).and_then(|path| path::absolute(path).ok());
        let variable = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let hosts = Some(given("PAGEFOLD_HOSTS_DIR").unwrap_or_else(|| HOSTS.into()));
        if let Some(file) = given("CONTAINERS_REGISTRIES_CONF") {
            return Self { registries: vec![file], hosts };
        }
        let system = PathBuf::from("/etc/containers");
        let user = variable("XDG_CONFIG_HOME").or_else(|| Some(variable("HOME")?.join(".config")));
        let user = user.map(|directory| directory.join("containers"));
        let file = |directory: &PathBuf| directory.join("registries.conf");
        let main = user.as_ref().map(file).filter(|file| file.exists()).unwrap_or_else(|| file(&system));
        let mut registries = vec![main];
        for directory in [Some(system), user].into_iter().flatten() {
            let entries = fs::read_dir(directory.join("registries.conf.d")).into_iter().flatten().flatten();
            let files = entries.map(|entry| entry.path());
            let mut files: Vec<_> =
                files.filter(|path| path.extension().is_some_and(|extension| extension == "conf")).collect();
            files.sort();
            registries.extend(files);
        }
        Self { registries, hosts }
    }

    /// Returns where the images of a repository are.
    ///
    /// # Errors
    /// A file is invalid, or says that the repository must not be used.
    pub(crate) fn places(&self, of: &Reference) -> Result<Places> {
        let (registry, repository) = canonical(of);
        let mut places = self.of_registries(&format!("{registry}/{repository}"))?;
        let more = self.of_hosts(&registry, &repository)?;
        // The replacement of the registry itself is the last one.
        let last = places.mirrors.len() - usize::from(places.is_replaced);
        let new: Vec<_> = more.mirrors.into_iter().filter(|new| !places.mirrors.contains(new)).collect();
        match (places.is_replaced, more.is_replaced) {
            (true, true) => {
                let mirrors = new.len().saturating_sub(1);
                places.mirrors.splice(last..last, new.into_iter().take(mirrors));
            }
            _ => drop(places.mirrors.splice(last..last, new)),
        }
        places.is_replaced |= more.is_replaced;
        places.home = more.home;
        Ok(places)
    }

    /// Returns the places that `registries.conf` gives for an image of this name.
    fn of_registries(&self, name: &str) -> Result<Places> {
        let mut best: Option<(usize, String, String, Places)> = None;
        for path in &self.registries {
            let Some(document) = read(path)? else { continue };
            let wrong = |what: &str| Error::Location { location: path.display().to_string(), what: what.to_owned() };
            for table in tables(document.get("registry")) {
                let text = |key: &str| table.get(key).and_then(Item::as_str);
                let is = |table: &dyn TableLike, key: &str| table.get(key).and_then(Item::as_bool).unwrap_or(false);
                let Some(prefix) = text("prefix").or_else(|| text("location")) else {
                    return Err(wrong("a [[registry]] has neither a prefix nor a location"));
                };
                let Some(end) = matched(prefix, name) else { continue };
                // The longest match; among equal lengths the first by name, among equal names the
                // last.
                if best.as_ref().is_some_and(|(before, of, ..)| (end, &**of) < (*before, prefix)) {
                    continue;
                }
                let mut blocked = String::new();
                if is(table, "blocked") {
                    blocked = format!("{} blocks {prefix}", path.display());
                }
                let mut places = Places::default();
                let mut add = |location: &str, insecure: bool, has: Has| {
                    let place = at(&format!("{location}{}", &name[end..]), insecure, has);
                    let place = place.ok_or_else(|| wrong("a location is not a registry"))?;
                    places.mirrors.extend(place);
                    Ok(())
                };
                let only_sums = is(table, "mirror-by-digest-only");
                for mirror in tables(table.get("mirror")) {
                    let location = mirror.get("location").and_then(Item::as_str);
                    let location = location.ok_or_else(|| wrong("a [[registry.mirror]] has no location"))?;
                    let has = match mirror.get("pull-from-mirror").and_then(Item::as_str) {
                        Some("digest-only") => Has { tags: false, sums: true },
                        Some("tag-only") => Has { tags: true, sums: false },
                        _ => Has { tags: !only_sums, sums: true },
                    };
                    add(location, is(mirror, "insecure"), has)?;
                }
                if let Some(location) = text("location").filter(|location| *location != prefix) {
                    add(location, is(table, "insecure"), Has::ALL)?;
                    places.is_replaced = true;
                }
                best = Some((end, prefix.to_owned(), blocked, places));
            }
        }
        match best {
            Some((_, _, blocked, _)) if !blocked.is_empty() => {
                Err(Error::Location { location: format!("oci://{name}"), what: blocked })
            }
            Some((.., places)) => Ok(places),
            None => Ok(Places::default()),
        }
    }

    /// Returns the places that `hosts.toml` gives for a registry.
    fn of_hosts(&self, registry: &str, repository: &str) -> Result<Places> {
        let Some(hosts) = &self.hosts else { return Ok(Places::default()) };
        let other = registry.rsplit_once(':').map(|(host, port)| format!("{host}_{port}_"));
        let names = other.iter().map(String::as_str).chain([registry, ANY_HOST]);
        let Some(directory) = names.map(|name| hosts.join(name)).find(|path| path.is_dir()) else {
            return Ok(Places::default());
        };
        let path = directory.join("hosts.toml");
        let Some(document) = read(&path)? else { return Ok(Places::default()) };
        let mut places = Places::default();
        let itself = base(registry, "https");
        let mut add = |url: &str, table: &dyn TableLike| {
            let wrong = |what: &str| Error::Location { location: path.display().to_string(), what: what.to_owned() };
            let is_whole = table.get("override_path").and_then(Item::as_bool).unwrap_or(false);
            let base = host(url, is_whole).ok_or_else(|| wrong("a host is not a server"))?;
            let can = |what: &str| match table.get("capabilities").and_then(Item::as_array) {
                Some(all) => all.iter().any(|one| one.as_str() == Some(what)),
                None => true,
            };
            places.mirrors.push(Mirror {
                namespace: (itself.as_ref() != Some(&base)).then(|| registry.to_owned()),
                headers: headers(table.get("header")).ok_or_else(|| wrong("a header is invalid"))?,
                has: Has { tags: can("resolve"), sums: can("pull") },
                repository: repository.to_owned(),
                base,
            });
            Result::Ok(())
        };
        let hosts = document.get("host").and_then(Item::as_table_like);
        for (url, table) in hosts.iter().flat_map(|hosts| hosts.iter()) {
            if let Some(table) = table.as_table_like() {
                add(url, table)?;
            }
        }
        let server = document.get("server").and_then(Item::as_str);
        if let Some(server) = server.filter(|server| host(server, false) != itself) {
            add(server, document.as_table())?;
            places.is_replaced = true;
            places.home = places.mirrors.last().cloned();
        }
        Ok(places)
    }
}

/// Returns the names of the registry and of the repository, as configurations spell them.
pub(crate) fn canonical(of: &Reference) -> (String, String) {
    match &*of.registry {
        "docker.io" | "index.docker.io" | "registry-1.docker.io" => {
            let official = if of.repository.contains('/') { "" } else { "library/" };
            ("docker.io".to_owned(), format!("{official}{}", of.repository))
        }
        other => (other.to_owned(), of.repository.clone()),
    }
}

/// Returns where the protocol's paths of a registry begin.
pub(crate) fn base(registry: &str, scheme: &str) -> Option<Url> {
    let registry = if registry == "docker.io" { "registry-1.docker.io" } else { registry };
    let url = Url::parse(&format!("{scheme}://{registry}/v2/")).ok()?;
    let is_plain = url.username().is_empty() && url.password().is_none() && url.path() == "/v2/";
    (is_plain && !registry.contains(['?', '#'])).then_some(url)
}

/// Returns the servers for a location such as `host:port/repository`: those without certificates are
/// asked with and without https.
fn at(location: &str, insecure: bool, has: Has) -> Option<Vec<Mirror>> {
    let (registry, repository) = location.split_once('/')?;
    let secure = base(registry, "https")?;
    let bases = match (is_loopback(&secure), insecure) {
        (true, _) => vec![base(registry, "http")?],
        (false, true) => vec![secure, base(registry, "http")?],
        (false, false) => vec![secure],
    };
    let mirror = |base| Mirror { base, repository: repository.to_owned(), namespace: None, headers: Vec::new(), has };
    (!repository.is_empty()).then(|| bases.into_iter().map(mirror).collect())
}

/// Returns where the protocol's paths begin on one of containerd's hosts. Its URL may lack a scheme.
fn host(text: &str, is_whole: bool) -> Option<Url> {
    let mut url = match text.contains("://") {
        true => Url::parse(text).ok()?,
        false => {
            let secure = Url::parse(&format!("https://{text}")).ok()?;
            if is_loopback(&secure) { Url::parse(&format!("http://{text}")).ok()? } else { secure }
        }
    };
    let is_plain = url.username().is_empty() && url.password().is_none() && url.query().is_none();
    if !matches!(url.scheme(), "http" | "https") || !is_plain || url.host().is_none() {
        return None;
    }
    let path = url.path().trim_end_matches('/');
    let path = if is_whole || path.ends_with("/v2") { format!("{path}/") } else { format!("{path}/v2/") };
    url.set_path(&path);
    url.set_fragment(None);
    Some(url)
}

/// Returns how much of an image's name a prefix matches, by podman's rules: a host matches with any
/// port, and `*.` at the front matches all hosts of a domain.
fn matched(prefix: &str, name: &str) -> Option<usize> {
    let end = match prefix.strip_prefix('*').filter(|domain| domain.starts_with('.')) {
        Some(domain) => {
            let start = name.find(domain).filter(|start| !name[..*start].contains('/'))?;
            start + domain.len()
        }
        None => name.starts_with(prefix).then_some(prefix.len())?,
    };
    let rest = &name[end..];
    (rest.is_empty() || rest.starts_with([':', '/'])).then_some(end)
}

/// Returns headers whose values are texts or lists of texts. They may be credentials.
fn headers(item: Option<&Item>) -> Option<Vec<(HeaderName, HeaderValue)>> {
    let mut headers = Vec::new();
    let Some(table) = item.and_then(Item::as_table_like) else { return Some(headers) };
    for (name, values) in table.iter() {
        let values: Vec<&str> = match values.as_array() {
            Some(all) => all.iter().filter_map(|one| one.as_str()).collect(),
            None => values.as_str().into_iter().collect(),
        };
        for value in values {
            let mut value = HeaderValue::try_from(value).ok()?;
            value.set_sensitive(true);
            headers.push((HeaderName::try_from(name).ok()?, value));
        }
    }
    Some(headers)
}

/// Returns the tables of an array of tables.
fn tables(item: Option<&Item>) -> Vec<&dyn TableLike> {
    let Some(item) = item else { return Vec::new() };
    match (item.as_array_of_tables(), item.as_array()) {
        (Some(tables), _) => tables.iter().map(|table| table as &dyn TableLike).collect(),
        (None, Some(array)) => {
            array.iter().filter_map(|one| one.as_inline_table()).map(|table| table as &dyn TableLike).collect()
        }
        (None, None) => Vec::new(),
    }
}

/// Reads a file, which need not exist.
fn read(path: &Path) -> Result<Option<Document<String>>> {
    let failed = |source| Error::Io { path: path.display().to_string(), source };
    let text = match file::text(path) {
        Ok(text) => text,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(failed(error)),
    };
    // The parser's message would show the line, which may contain a credential.
    let parsed = Document::parse(text).map_err(|error| {
        let what = format!("invalid TOML: {}", error.message());
        Error::Location { location: path.display().to_string(), what }
    });
    parsed.map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Location;

    fn reference(name: &str) -> Reference {
        match Location::parse(&format!("oci://{name}")).expect("a location") {
            Location::Oci(reference) => reference,
            _ => unreachable!("a registry"),
        }
    }

    /// Returns the places of an image, as `BASE REPOSITORY [ns] [tags] [sums]`.
    fn places(mirrors: &Mirrors, name: &str) -> (Vec<String>, bool) {
        let places = mirrors.places(&reference(name)).expect("places");
        let show = |mirror: &Mirror| {
            let mut text = format!("{} {}", mirror.base, mirror.repository);
            text.extend(mirror.namespace.iter().map(|namespace| format!(" ns={namespace}")));
            text += if mirror.has.tags { "" } else { " sums" };
            text += if mirror.has.sums { "" } else { " tags" };
            mirror.headers.iter().for_each(|(name, value)| {
                text += &format!(" {name}={}", value.to_str().expect("text"));
            });
            text
        };
        (places.mirrors.iter().map(show).collect(), places.is_replaced)
    }

    #[test]
    fn registries_conf() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("registries.conf");
        let later = folder.path().join("later.conf");
        let text = r#"
            unqualified-search-registries = ["docker.io"]
            [[registry]]
            location = "docker.io"
            [[registry.mirror]]
            location = "mirror.example/hub"
            [[registry.mirror]]
            location = "localhost:5000"
            insecure = true
            [[registry]]
            prefix = "docker.io/library"
            location = "inner.example/library"
            mirror-by-digest-only = true
            mirror = [{ location = "10.0.0.1:5000/x", insecure = true }]
            [[registry]]
            prefix = "*.example.org"
            [[registry.mirror]]
            location = "mirror.example"
            pull-from-mirror = "digest-only"
            [[registry.mirror]]
            location = "mirror.example"
            pull-from-mirror = "tag-only"
            [[registry]]
            location = "blocked.example"
            blocked = true
        "#;
        fs::write(&path, text).expect("a file");
        fs::write(&later, "[[registry]]\nprefix = \"later.example\"\nlocation = \"b.example\"\n").expect("a file");
        let all = Mirrors::of_files(vec![path.clone(), folder.path().join("none"), later.clone()], None);
        let hub = ["https://mirror.example/v2/ hub/a/b", "http://localhost:5000/v2/ a/b"];
        assert_eq!(places(&all, "docker.io/a/b"), (hub.map(str::to_owned).to_vec(), false));
        assert_eq!(places(&all, "index.docker.io/a/b").0, hub);
        let inner = [
            "https://10.0.0.1:5000/v2/ x/debian sums",
            "http://10.0.0.1:5000/v2/ x/debian sums",
            "https://inner.example/v2/ library/debian",
        ];
        assert_eq!(places(&all, "docker.io/debian"), (inner.map(str::to_owned).to_vec(), true));
        let domain = ["https://mirror.example/v2/ a sums", "https://mirror.example/v2/ a tags"];
        assert_eq!(places(&all, "one.example.org/a"), (domain.map(str::to_owned).to_vec(), false));
        assert_eq!(places(&all, "example.org/a"), (Vec::new(), false));
        assert_eq!(places(&all, "later.example/a"), (vec!["https://b.example/v2/ a".to_owned()], true));
        assert_eq!(places(&all, "later.example.net/a"), (Vec::new(), false));
        // As in podman.
        let port = vec!["https://b.example:5000/v2/ a".to_owned()];
        assert_eq!(places(&all, "later.example:5000/a"), (port, true));
        assert_eq!(places(&all, "one.example.org:5000/a").0.len(), 2);
        assert_eq!(places(&all, "other/a.example.org/a"), (Vec::new(), false));
        let error = all.places(&reference("blocked.example/a")).expect_err("blocked").to_string();
        assert!(error.contains("blocks blocked.example"), "{error}");
        // The same prefix again.
        fs::write(&later, "[[registry]]\nlocation = \"docker.io\"\n").expect("a file");
        assert_eq!(places(&all, "docker.io/a/b"), (Vec::new(), false));
    }

    #[test]
    fn hosts_toml() {
        let folder = tempfile::tempdir().expect("a folder");
        let put = |registry: &str, text: &str| {
            fs::create_dir(folder.path().join(registry)).expect("a folder");
            fs::write(folder.path().join(registry).join("hosts.toml"), text).expect("a file");
        };
        put(
            "docker.io",
            r#"
            server = "https://registry-1.docker.io"
            [host."http://127.0.0.1:30020"]
            capabilities = ["pull", "resolve"]
            [host."http://127.0.0.1:30020".header]
            X-Dragonfly-Registry = ["https://index.docker.io"]
            [host."a.example/proxy"]
            capabilities = ["pull"]
            skip_verify = true
            [host."https://b.example/proxy/v2"]
            override_path = true
            "#,
        );
        put("reg.example_5000_", "server = \"https://only.example\"\n");
        put("_default", "[host.\"https://any.example\"]\ncapabilities = [\"resolve\"]\n");
        let all = Mirrors::of_files(Vec::new(), Some(folder.path().to_owned()));
        let expected = [
            "http://127.0.0.1:30020/v2/ library/debian ns=docker.io x-dragonfly-registry=https://index.docker.io",
            "https://a.example/proxy/v2/ library/debian ns=docker.io sums",
            "https://b.example/proxy/v2/ library/debian ns=docker.io",
        ];
        assert_eq!(places(&all, "docker.io/debian"), (expected.map(str::to_owned).to_vec(), false));
        let only = "https://only.example/v2/ a ns=reg.example:5000".to_owned();
        assert_eq!(places(&all, "reg.example:5000/a"), (vec![only], true));
        let any = "https://any.example/v2/ a ns=other.example tags".to_owned();
        assert_eq!(places(&all, "other.example/a"), (vec![any], false));
        // With both kinds of files, the replacement of a registry is still the last place.
        let path = folder.path().join("registries.conf");
        let text = "[[registry]]\nprefix = \"other.example\"\nlocation = \"c.example\"\n";
        fs::write(&path, text).expect("a file");
        let both = Mirrors::of_files(vec![path.clone()], Some(folder.path().to_owned()));
        let expected = ["https://any.example/v2/ a ns=other.example tags", "https://c.example/v2/ a"];
        assert_eq!(places(&both, "other.example/a"), (expected.map(str::to_owned).to_vec(), true));
    }

    #[test]
    fn errors_name_the_file_and_no_secret() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("registries.conf");
        let mirrors = Mirrors::of_files(vec![path.clone()], None);
        for (text, what) in [
            ("[[registry]\nsecret", "invalid TOML"),
            ("[[registry]]\nblocked = true", "neither a prefix nor a location"),
            ("[[registry]]\nlocation = \"a.example\"\n[[registry.mirror]]\ninsecure = true", "no location"),
            (
                "[[registry]]\nlocation = \"a.example\"\n[[registry.mirror]]\nlocation = \"u:secret@b\"",
                "not a registry",
            ),
        ] {
            fs::write(&path, text).expect("a file");
            let error = mirrors.places(&reference("a.example/x")).expect_err(what).to_string();
            assert!(error.contains(what) && error.contains("registries.conf") && !error.contains("secret"), "{error}");
        }
    }
}
