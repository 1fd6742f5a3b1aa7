use std::{collections::BTreeMap, fs};

use proptest::{prelude::*, sample::subsequence};

use super::*;

fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("serve.toml");
    fs::write(&path, text).expect("a file");
    (folder, path)
}

fn expanded(text: &str, more: &[&str]) -> anyhow::Result<(Vec<OsString>, AtStart)> {
    let (_folder, path) = file(text);
    let first = ["pagefold".into(), "serve".into(), "--config".into(), path.into_os_string()];
    expand(first.into_iter().chain(more.iter().map(OsString::from)).collect())
}

/// Returns the error without the path.
fn error(text: &str, more: &[&str]) -> String {
    let Err(error) = expanded(text, more) else { panic!("accepted: {text}") };
    assert!(error.is::<crate::report::Misuse>(), "{text}: {error}");
    let text = error.to_string();
    text.split_once("serve.toml:").map_or(text.clone(), |(_, rest)| rest.to_owned())
}

/// Returns the values of a command line, by option.
fn options(words: &[OsString]) -> BTreeMap<String, Vec<OsString>> {
    let found = command().try_get_matches_from(words).unwrap_or_else(|error| panic!("{words:?}: {error}"));
    let of = |id: &str| found.get_raw(id).into_iter().flatten().map(OsStr::to_owned).collect();
    let given = found.ids().map(clap::Id::as_str).filter(|id| found.value_source(id) == Some(ValueSource::CommandLine));
    given.filter(|id| *id != "config" && *id != "Args").map(|id| (id.to_owned(), of(id))).collect()
}

/// A value of each option that needs no other and excludes none, as it is on the command line.
const VALUES: [(&str, &[&str]); 26] = [
    ("export", &["name=a,size=1G,limit=1M", "name=b,size=512"]),
    ("dir", &["/run/x y"]),
    ("unix", &["/run/a=b.sock", "/run/\"quoted\\'.sock"]),
    ("vhost-user", &["/run/vm"]),
    ("files", &["/mnt/x"]),
    ("mode", &["0660"]),
    ("group", &["0"]),
    ("tcp", &["10809", "127.0.0.1:1"]),
    ("vsock", &["1", "3:2"]),
    ("tls-certificates", &["/etc/pki"]),
    ("tls-verify-peer", &[]),
    ("tls", &["on"]),
    ("control", &["/run/c.sock"]),
    ("codec", &["lz4"]),
    ("memory-limit", &["none"]),
    ("base-cache", &["64M"]),
    ("when-full", &["wait"]),
    ("dedupe", &[]),
    ("keep-memory", &[]),
    ("read-only", &[]),
    ("max-connections", &["7"]),
    ("exit-with-parent", &[]),
    ("pid-file", &["/run/x.pid"]),
    ("log", &["debug"]),
    ("metrics", &["/run/m.sock", "9809"]),
    ("log-file", &["/var/log/\u{e9}"]),
];

/// Options that need or exclude some of the others.
const OTHERS: [&str; 6] = ["format", "device", "size", "name", "run", "detach"];

#[test]
fn every_option_has_a_key() {
    let command = command();
    let names: Vec<_> = options::all(&command).filter_map(clap::Arg::get_long).collect();
    let known = |name: &str| VALUES.iter().any(|(key, _)| *key == name) || OTHERS.contains(&name);
    let new = names.iter().filter(|name| !known(name));
    // Flags and values of any kind work alike: a new option needs a value above, or a name among the
    // others.
    let left: Vec<_> = new
        .filter(|name| !["swap", "offline", "unverified", "chunk-cache", "chunk-cache-limit"].contains(name))
        .collect();
    assert!(left.is_empty(), "options without a value in this test: {left:?}");
}

/// Returns a value in TOML.
fn toml(value: &str, as_number: bool) -> String {
    let is_number = !value.is_empty() && !value.starts_with('0') && value.bytes().all(|byte| byte.is_ascii_digit());
    if as_number && is_number { value.to_owned() } else { format!("{value:?}") }
}

/// Verification of clients needs certificates.
fn is_possible(keys: &[&str]) -> bool {
    keys.contains(&"tls-certificates") || !keys.iter().any(|key| key.starts_with("tls"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    /// A file means what the same options mean on the command line, and those of the command line
    /// replace the file's.
    #[test]
    fn a_file_is_a_command_line(
        in_file in subsequence(VALUES.to_vec(), 0..VALUES.len()),
        on_line in subsequence(VALUES.to_vec(), 0..6),
        numbers: bool,
        single: bool,
    ) {
        let keys: Vec<_> = in_file.iter().chain(&on_line).map(|(key, _)| *key).collect();
        prop_assume!(is_possible(&keys));
        let mut text = String::from("# options\n");
        for (key, values) in &in_file {
            let values: Vec<_> = values.iter().map(|value| toml(value, numbers)).collect();
            text += &match &values[..] {
                [] => format!("{key} = true\n"),
                [value] if single || key != &"tcp" => format!("{key} = {value}\n"),
                values => format!("{key} = [\n  {},\n]\n", values.join(",\n  ")),
            };
        }
        let words = |options: &[(&str, &[&str])], unless: &[&str]| -> Vec<String> {
            let kept = options.iter().filter(|(key, _)| !unless.contains(key));
            let word = |key: &str, value: &&str| format!("--{key}={value}");
            kept.flat_map(|(key, values)| match values {
                [] => vec![format!("--{key}")],
                values => values.iter().map(|value| word(key, value)).collect(),
            }).collect()
        };
        let line = words(&on_line, &[]);
        let (found, _) = expanded(&text, &line.iter().map(String::as_str).collect::<Vec<_>>()).expect(&text);
        let replaced: Vec<_> = on_line.iter().map(|(key, _)| *key).collect();
        let expected: Vec<OsString> =
            ["serve".to_owned()].into_iter().chain(words(&in_file, &replaced)).chain(line).map(Into::into).collect();
        prop_assert_eq!(options(&found[1..]), options(&expected), "{}", text);
    }

    /// No file makes the program panic.
    #[test]
    fn any_text_is_read_or_refused(text in "(\\[\\[?(disk|base|fork|x)\\]\\]?\n|(size|name|tcp|file|from|mode) ?= ?[\\[\\]\"0-9a-z,{}= ]{0,12}\n|.{0,6}\n){0,12}") {
        let _ = expanded(&text, &[]);
    }
}

#[test]
fn command_lines_without_a_file_are_left_alone() {
    let words: Vec<OsString> = ["pagefold", "pack", "--config", "x"].map(Into::into).into();
    assert_eq!(expand(words.clone()).expect("words").0, words);
    let words: Vec<OsString> = ["pagefold", "serve", "--size", "1G"].map(Into::into).into();
    assert_eq!(expand(words.clone()).expect("words").0, words);
    let words: Vec<OsString> = ["pagefold", "serve", "--config", "/none", "--help"].map(Into::into).into();
    assert_eq!(expand(words.clone()).expect("words").0, words);
}

#[test]
fn tables_mean_what_the_commands_mean() {
    let text = r#"
        read-only = false

        [[disk]]
        name = "scratch"
        size = "8G"
        limit = "1G"
        connections = 8
        rate = "1M"
        read-only = true

        [[base]]
        name = "debian"
        file = "/images/all.erofs:/disks/debian.img"
        format = "erofs"
        device = ["/images/a", "/images/b"]

        [[fork]]
        from = "debian"
        name = ["job-1", "job-2"]
        socket = "/run/x.sock"
        mode = "0660"
        group = 0
    "#;
    let (_, AtStart(found)) = expanded(text, &[]).expect("a configuration");
    let disk = super::super::options::parse_disk("name=scratch,size=8G,limit=1G,connections=8,rate=1M,read-only");
    assert_eq!(found.disks[0].what, disk.expect("a disk"));
    let base = &found.bases[0].what;
    assert_eq!((base.path.as_str(), base.inside.as_deref()), ("/images/all.erofs", Some("/disks/debian.img")));
    assert_eq!((base.format.as_deref(), base.devices.len()), (Some("erofs"), 2));
    let fork = &found.forks[0].what;
    assert_eq!((fork.from.as_str(), fork.names.len()), ("debian", 2));
    assert_eq!(fork.socket.as_ref().and_then(|socket| socket.mode.as_deref()), Some("0660"));

    // A disk, or a file, on the command line replaces those of the file.
    // Forks of these go with them, and so do forks of forks, unless the new one has the name.
    let text = format!(
        "{text}\n[[fork]]\nfrom = \"job-2\"\nname = \"job-3\"\n[[fork]]\nfrom = \"scratch\"\nname = \"of-scratch\"\n"
    );
    for (more, disks, bases, forks) in [
        (&["--size", "1G"][..], 0, 1, 2),
        (&["--export", "name=x,size=1G"], 0, 1, 2),
        (&["--export", "name=scratch,size=1G"], 0, 1, 3),
        (&["/x.img"], 1, 0, 1),
        (&["/x.img", "/y/debian.img"], 1, 0, 3),
        (&["debian=/x.img", "--size", "1G", "--name", "scratch"], 0, 0, 3),
        (&["/x.img", "--size", "1G"], 0, 0, 0),
    ] {
        let (_, AtStart(found)) = expanded(&text, more).expect("a configuration");
        assert_eq!((found.disks.len(), found.bases.len(), found.forks.len()), (disks, bases, forks), "{more:?}");
    }
}

/// A disk's own socket has the mode and the group of the options, unless its table has others.
#[test]
fn sockets_of_tables_have_the_mode_and_group_of_the_others() {
    let tables = "[[disk]]\nname = 'a'\nsize = 512\nsocket = '/run/a.sock'\n\
        [[base]]\nname = 'b'\nfile = '/b'\nsocket = '/run/b.sock'\nmode = '0666'\n\
        [[fork]]\nfrom = 'a'\nname = 'c'\nsocket = '/run/c.sock'\ngroup = 1\n";
    for (top, more, mode, group) in [
        ("", &[][..], None, None),
        ("mode = '0660'\ngroup = 0\n", &[], Some("0660"), Some("0")),
        ("group = 0\n", &["--mode", "0640"], Some("0640"), Some("0")),
        ("mode = '0660'\n", &["--mode=0640", "--group=2"], Some("0640"), Some("2")),
    ] {
        let (_, AtStart(found)) = expanded(&format!("{top}{tables}"), more).expect("a configuration");
        let sockets = [&found.disks[0].what.socket, &found.bases[0].what.socket, &found.forks[0].what.socket];
        let found = sockets.map(|socket| {
            let socket = socket.as_ref().expect("a socket");
            (socket.mode.as_deref(), socket.group.as_deref())
        });
        assert_eq!(found, [(mode, group), (Some("0666"), group), (mode, Some("1"))], "{top} {more:?}");
    }
}

#[test]
fn errors_name_the_line_and_the_key() {
    for (text, line, words) in [
        ("memory-limit = \"4X\"\n", 1, "'memory-limit': invalid value '4X'"),
        ("\nmemory = 4\n", 2, "'memory': unknown key; known keys:"),
        ("\n\nconfig = \"x\"", 3, "'config': unknown key"),
        ("announce = true", 1, "'announce': unknown key"),
        ("a = 1\na = 2\n", 2, "duplicate key"),
        ("dedupe = \"yes\"", 1, "'dedupe': must be true or false, not text"),
        ("tcp = 1.5", 1, "'tcp': must be text or a number, not a number with a fraction"),
        ("tcp = [[1]]", 1, "not a list"),
        ("dir = [\"a\"]", 1, "'dir': must be text or a number, not a list"),
        ("mode = 0o660", 1, "'mode': write 0o660 in quotes"),
        ("max-connections = 0", 1, "'max-connections': invalid value '0'"),
        ("codec = \"lz5\"", 1, "'codec': invalid value 'lz5'"),
        ("dir = ", 1, ""),
        ("[disk]\nname = \"a\"", 1, "'disk': write [[disk]]"),
        ("disk = 1", 1, "'disk': write [[disk]]"),
        ("[[disks]]\n", 1, "'disks': unknown key"),
        ("\n[[disk]]\nname = \"a\"\n", 2, "this disk has no 'size'"),
        ("[[disk]]\nsize = 512\n", 1, "this disk has no 'name'"),
        ("[[disk]]\nname = \"a\"\nsize = \"1Q\"", 3, "disk: 'size': "),
        ("[[disk]]\nname = \"a\"\nsize = 512\ncodec = \"lz4\"", 4, "the codec applies to all disks of a server"),
        ("[[disk]]\nname = \"a\"\nsize = 512\nmode = \"0660\"", 4, "give 'socket' too"),
        ("[[disk]]\nname = \"a\"\nsize = 512\nsocket = \"/x\"\nmode = \"9\"", 5, "disk: 'mode': '9' is not a mode"),
        ("[[disk]]\nname = \"a\"\nsize = 512\nrate = \"1K\"", 4, "disk: 'rate': less than 64 KiB"),
        ("[[base]]\nname = \"a\"\n", 1, "this base has no 'file'"),
        ("[[base]]\nname = \"a\"\nfile = \"/x\"\nformat = \"zip\"", 4, "base: 'format': "),
        ("[[fork]]\nname = \"a\"\n", 1, "this fork has no 'from'"),
        ("[[fork]]\nfrom = \"a\"\nname = []\n", 3, "fork: 'name': has no name"),
        (
            "[[disk]]\nname = \"a\"\nsize = 512\n[[fork]]\nfrom = \"a\"\nname = \"a\"\n",
            4,
            "the name 'a' is also given at",
        ),
        ("[[fork]]\nfrom = \"a\"\nname = [\"b\", \"b\"]\n", 1, "the name 'b' is also given at"),
    ] {
        let error = error(text, &[]);
        assert!(error.starts_with(&format!("{line}:")) && error.contains(words), "{text:?}: {error}");
    }
}

#[test]
fn options_that_need_others_may_have_them_in_either_place() {
    expanded("tls-certificates = \"/pki\"", &["--tls", "on", "--tls-verify-peer"]).expect("the file has them");
    expanded("tls-verify-peer = true", &["--tls-certificates", "/pki"]).expect("the command line has them");
    let alone = error("tls-verify-peer = true", &[]);
    assert!(alone.contains("with the command line: ") && alone.contains("--tls-certificates"), "{alone}");
    let both = error("swap = true", &["--run", "true"]);
    assert!(both.contains("cannot be used with"), "{both}");
}
