//! Metrics of a running server, and the files that use their names.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::{
        fs::{FileExt, PermissionsExt},
        net::UnixStream,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use pagefold_testing::{find, skip, skip_for_good};
use rustix::fs::FallocateFlags;
use serde_json::json;

use crate::{
    control::Control,
    files::Place,
    server::{Server, make_image, pagefold, run, run_to_fail},
};

/// The labels of a sample and their values, in order.
type Labels = Vec<(String, String)>;

/// Metrics that were checked: each sample's name, with the values by labels.
#[derive(Debug, Default)]
struct Metrics {
    families: BTreeSet<String>,
    samples: BTreeMap<String, BTreeMap<Labels, f64>>,
}

impl Metrics {
    /// Reads OpenMetrics, and checks that they keep the rules of the specification.
    fn read(text: &str) -> Self {
        let body = text.strip_suffix("# EOF\n").expect("an end");
        let mut metrics = Self::default();
        let (mut family, mut kind) = (String::new(), String::new());
        for line in body.lines() {
            let mut words = line.splitn(4, ' ');
            match (words.next(), words.next()) {
                (Some("#"), Some(what)) => {
                    let (name, rest) = (words.next().expect("a name"), words.next().expect("a value"));
                    match what {
                        "TYPE" => {
                            let letters = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
                            assert!(letters && name.starts_with("pagefold_"), "{line}");
                            for end in ["_total", "_info", "_count", "_sum", "_bucket"] {
                                assert!(!name.ends_with(end), "{line}");
                            }
                            assert!(metrics.families.insert(name.to_owned()), "{name} is there twice");
                            (family, kind) = (name.to_owned(), rest.to_owned());
                        }
                        "UNIT" => assert!(name == family && name.ends_with(&format!("_{rest}")), "{line}"),
                        "HELP" => assert!(name == family && rest.len() > 3 && rest.ends_with('.'), "{line}"),
                        _ => panic!("{line}"),
                    }
                }
                _ => metrics.add(line, &family, &kind),
            }
        }
        let names: Vec<_> = metrics.samples.keys().cloned().collect();
        names.iter().filter_map(|name| name.strip_suffix("_bucket")).for_each(|name| metrics.check_histogram(name));
        metrics
    }

    fn add(&mut self, line: &str, family: &str, kind: &str) {
        let (series, value) = line.rsplit_once(' ').expect("a value");
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let ends: &[&str] = match kind {
            "gauge" => &[""],
            "counter" => &["_total"],
            "info" => &["_info"],
            "histogram" => &["_bucket", "_count", "_sum"],
            "summary" => &["_count", "_sum"],
            _ => panic!("{family} is a {kind}"),
        };
        let end = name.strip_prefix(family).unwrap_or_else(|| panic!("{line} is not of {family}"));
        assert!(ends.contains(&end), "{line} is of a {kind}");
        let value: f64 = value.parse().expect("a number");
        assert!(value.is_finite() && value >= 0.0, "{line}");
        let labels = labels_of(labels);
        let names: HashSet<_> = labels.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), labels.len(), "{line}");
        assert!(kind != "info" || value == 1.0, "{line}");
        let earlier = self.samples.entry(name.to_owned()).or_default().insert(labels, value);
        assert_eq!(earlier, None, "{line} is there twice");
    }

    fn check_histogram(&self, name: &str) {
        let mut series: BTreeMap<Labels, Vec<(f64, f64)>> = BTreeMap::new();
        for (labels, count) in &self.samples[&format!("{name}_bucket")] {
            let (ends, others): (Labels, Labels) = labels.iter().cloned().partition(|(label, _)| label == "le");
            let end = ends[0].1.parse().expect("a bound");
            series.entry(others).or_default().push((end, *count));
        }
        for (labels, mut buckets) in series {
            buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
            assert!(buckets.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1), "{buckets:?}");
            let last = buckets.last().expect("buckets");
            assert_eq!((last.0, last.1), (f64::INFINITY, self.samples[&format!("{name}_count")][&labels]), "{name}");
        }
    }

    /// Returns the value of a sample.
    fn get(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let labels: Labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        self.samples.get(name)?.get(&labels).copied()
    }

    fn rows(&self, name: &str) -> usize {
        self.samples.get(name).map_or(0, BTreeMap::len)
    }
}

/// Reads `name="value",…}`.
fn labels_of(text: &str) -> Labels {
    let (mut labels, mut rest) = (Vec::new(), text);
    while !rest.is_empty() && rest != "}" {
        let (name, after) = rest.split_once("=\"").expect("a label");
        let (mut value, mut letters) = (String::new(), after.char_indices());
        let end = loop {
            match letters.next().expect("the end of a value") {
                (at, '"') => break at,
                (_, '\\') => value.push(match letters.next().expect("a letter").1 {
                    'n' => '\n',
                    letter @ ('\\' | '"') => letter,
                    letter => panic!("\\{letter} in {text}"),
                }),
                (_, letter) => value.push(letter),
            }
        };
        labels.push((name.to_owned(), value));
        rest = &after[end + 1..];
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
    assert!(text.is_empty() || rest == "}", "{text}");
    labels
}

/// Returns the head and the body of an answer.
fn get(mut stream: impl Read + Write, more: &str) -> (String, String) {
    stream.write_all(format!("GET /metrics HTTP/1.1\r\nHost: a\r\n{more}\r\n").as_bytes()).expect("a server");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head.to_owned(), body.to_owned())
}

fn scrape(socket: &Path) -> Metrics {
    let (head, body) = get(UnixStream::connect(socket).expect("a server"), "");
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    Metrics::read(&body)
}

/// Returns metrics that meet a condition. The previous metrics may be exported again for a while.
fn scrape_until(socket: &Path, is_met: impl Fn(&Metrics) -> bool) -> Metrics {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let metrics = scrape(socket);
        if is_met(&metrics) {
            return metrics;
        }
        assert!(Instant::now() < deadline, "{metrics:?}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Reads a disk's first 64 KiB in requests of 4 KiB, as a client does.
fn read_64_kib(server: &Server, disk: &str) {
    let client = pagefold_serve::Client::unix(&server.socket(), disk, Duration::from_secs(60));
    let mut client = client.expect("an export");
    for page in 0..16 {
        client.read(page * 4096, &mut [0; 4096]).expect("data");
    }
}

/// A server with every kind of disk, its image, and the socket of its metrics.
fn server() -> (Server, tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let (image, socket) = (folder.path().join("base.img"), folder.path().join("metrics.sock"));
    make_image(&image, 2);
    let file = format!("base={}", image.display());
    let exports = ["--export", "name=a,size=1G,limit=64M", "--export", "name=b,size=1G"];
    let path = socket.to_str().expect("a plain path");
    let args = [&exports[..], &["--memory-limit", "256M", "--metrics", path, &file]].concat();
    (Server::start(&args), folder, socket)
}

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// Returns the names of metrics in a text.
fn names(text: &str) -> BTreeSet<String> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    text.split(|letter| !is_part(letter)).filter(|word| word.starts_with("pagefold_")).map(str::to_owned).collect()
}

#[test]
fn requests_of_clients_are_counted() {
    let (server, _folder, socket) = server();
    let mut control = Control::open(&server);
    control.done(&json!({"command": "fork", "from": "base", "names": ["fork-1", "fork \"\\2"]}));
    control.done(&json!({"command": "snapshot", "name": "a", "snapshot": "s"}));
    let read = |metrics: &Metrics, name: &str, disk| metrics.get(name, &[("disk", disk), ("operation", "read")]);
    let requests = "pagefold_disk_requests_total";
    let before = scrape(&socket);
    for disk in ["a", "base", "fork-1", "fork \"\\2", "a@s"] {
        assert_eq!(read(&before, requests, disk), Some(0.0), "{disk}");
    }
    ["base", "fork-1", "fork-1"].iter().for_each(|disk| read_64_kib(&server, disk));
    let after = scrape_until(&socket, |metrics| read(metrics, requests, "fork-1") == Some(32.0));
    assert_eq!(read(&after, requests, "base"), Some(16.0));
    assert_eq!(read(&after, requests, "fork-1"), Some(32.0));
    assert_eq!(read(&after, "pagefold_disk_request_bytes_total", "fork-1"), Some(f64::from(2 << 16)));
    assert_eq!(read(&after, "pagefold_disk_request_errors_total", "fork-1"), Some(0.0));
    // The first of each client and operation is measured, and each 16th after it.
    assert_eq!(read(&after, "pagefold_disk_request_duration_seconds_count", "fork-1"), Some(2.0));
    let all = |metrics: &Metrics, name: &str| metrics.get(name, &[("operation", "read")]).expect("a row");
    assert_eq!(all(&after, "pagefold_requests_total") - all(&before, "pagefold_requests_total"), 48.0);
    assert_eq!(all(&after, "pagefold_request_duration_seconds_count"), 3.0);
    assert_eq!(after.get("pagefold_forks_total", &[]), Some(2.0));
    assert_eq!(after.get("pagefold_snapshots_total", &[]), Some(1.0));
    let kinds = ["ram", "snapshot", "base"].map(|kind| after.get("pagefold_disks", &[("kind", kind)]));
    assert_eq!(kinds, [Some(4.0), Some(1.0), Some(1.0)]);
    assert_eq!(after.get("pagefold_disk_memory_limit_bytes", &[("disk", "a")]), Some(f64::from(64 << 20)));
    assert_eq!(server.figure("fork-1", "read_requests"), 32);
    assert_eq!(server.total("read_bytes"), 3 << 16);
    // A dropped disk's requests stay in the sum.
    control.done(&json!({"command": "drop", "name": "fork-1", "force": true}));
    let last = scrape_until(&socket, |metrics| read(metrics, requests, "fork-1").is_none());
    assert_eq!(all(&last, "pagefold_requests_total"), all(&after, "pagefold_requests_total"));
    let row = run(&mut server.ask(&["stat", "--zram", "mm_stat"]));
    let columns: Vec<u64> = row.split_whitespace().map(|column| column.parse().expect("a number")).collect();
    assert_eq!((columns.len(), columns[3]), (9, 256 << 20), "{row}");
    let row = run(&mut server.ask(&["stat", "--zram", "io_stat", "a"]));
    assert_eq!(row.split_whitespace().collect::<Vec<_>>(), ["0"; 4], "{row}");
}

/// Clients of NBD, vhost-user and files count alike.
#[test]
fn all_transports_count() {
    let Some(place) = Place::new("all_transports_count") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let sockets = folder.path().join("vms");
    let args = ["--export", "name=a,size=1M", "--files", place.text(), "--vhost-user"];
    let server = Server::start(&[&args[..], &[sockets.to_str().expect("a plain path")]].concat());
    let socket = sockets.join("a.sock");
    let deadline = Instant::now() + Duration::from_secs(60);
    while !socket.exists() {
        assert!(Instant::now() < deadline, "the socket");
        thread::sleep(Duration::from_millis(2));
    }
    let mut guest = pagefold_vhost_user::client::Client::connect(&socket, Default::default()).expect("a client");
    guest.queues[0].write(4096, &[7; 4096]).expect("a write");
    assert_eq!(guest.queues[0].read(4096, 4096).expect("a read"), [7; 4096]);
    assert!(guest.queues[0].read(1 << 20, 512).is_err(), "a read behind the end");
    for (figure, count) in [
        ("write_requests", 1),
        ("write_bytes", 4096),
        ("read_requests", 2),
        ("read_bytes", 4096),
        ("read_errors", 1),
        ("read_timed", 1),
    ] {
        assert_eq!(server.figure("a", figure), count, "vhost-user: {figure}");
    }
    let file = fs::OpenOptions::new().read(true).write(true).open(place.path("a")).expect("a file");
    file.write_all_at(&[8; 8192], 0).expect("a write");
    file.read_exact_at(&mut [0; 4096], 0).expect("a read");
    file.sync_all().expect("a flush");
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, 0, 4096).expect("a discard");
    read_64_kib(&server, "a");
    for (figure, count) in [
        ("write_requests", 2),
        ("write_bytes", 3 * 4096),
        ("read_requests", 3 + 16),
        ("read_bytes", (2 + 16) * 4096),
        ("discard_requests", 1),
        ("discard_bytes", 4096),
    ] {
        assert_eq!(server.figure("a", figure), count, "{figure}");
    }
    assert!(server.figure("a", "flush_requests") > 0);
}

#[test]
fn the_manual_lists_all_metrics() {
    let (server, _folder, socket) = server();
    read_64_kib(&server, "a");
    let metrics = scrape(&socket);
    let mut exported: BTreeSet<String> = metrics.samples.keys().cloned().collect();
    // The manual names a histogram or a summary once.
    for family in &metrics.families {
        if exported.contains(&format!("{family}_sum")) {
            exported.retain(|name| {
                name.strip_prefix(family.as_str()).is_none_or(|end| !["_sum", "_count", "_bucket"].contains(&end))
            });
            exported.insert(family.clone());
        }
    }
    let manual = fs::read_to_string(repository("docs/metrics.md")).expect("the manual");
    let rows = manual.lines().filter(|line| line.starts_with("| `pagefold_"));
    let rows = rows.filter_map(|line| line.split('|').nth(1)).collect::<Vec<_>>().join(" ");
    assert_eq!(names(&rows), exported);
}

/// The dashboard and the alerts use names that a server exports, each with its labels.
#[test]
fn dashboards_and_alerts_use_existing_metrics() {
    let (server, folder, socket) = server();
    read_64_kib(&server, "a");
    let metrics = scrape(&socket);
    let (dashboard, alerts) = ("packaging/grafana/pagefold.json", "packaging/prometheus/alerts.yml");
    for path in [dashboard, alerts] {
        let text = fs::read_to_string(repository(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        let used = names(&text);
        assert!(used.len() > 8, "{path}: {used:?}");
        for name in used {
            let labels: HashSet<_> = match metrics.samples.get(&name) {
                Some(rows) => rows.keys().flatten().map(|(label, _)| label.as_str()).collect(),
                None => panic!("{path} uses {name}, which is not exported"),
            };
            // Those of Prometheus are there in addition.
            for (at, _) in text.match_indices(&format!("{name}{{")) {
                let selector = text[at + name.len() + 1..].split('}').next().unwrap_or_default();
                for label in selector.split(',').filter_map(|part| part.split(['=', '!']).next()) {
                    assert!(label == "instance" || labels.contains(label), "{path}: {name} has no {label}");
                }
            }
        }
    }
    let text = fs::read_to_string(repository(dashboard)).expect("a dashboard");
    let dashboard: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let ids: HashSet<_> = panels.iter().map(|panel| panel["id"].as_u64().expect("a number")).collect();
    assert_eq!(ids.len(), panels.len());
    let test = "dashboards_and_alerts_use_existing_metrics";
    let Some(promtool) = find(Path::new("promtool")) else {
        return skip_for_good(test, "promtool, of Debian's package prometheus, is not installed");
    };
    // It checks expressions of rules: those of the dashboard become rules, with values for its variables.
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let rule = |(number, target): (usize, &serde_json::Value)| {
        let expression = target["expr"].as_str().expect("an expression").replace("$__rate_interval", "5m");
        json!({"record": format!("panel:{number}"), "expr": expression})
    };
    let rules: Vec<_> = targets.enumerate().map(rule).collect();
    let panels = folder.path().join("panels.yml");
    fs::write(&panels, json!({"groups": [{"name": "panels", "rules": rules}]}).to_string()).expect("room");
    for path in [panels, repository(alerts)] {
        run(Command::new(&promtool).args(["check", "rules"]).arg(path));
    }
}

/// The parser of Prometheus's client for Python is stricter than Prometheus.
#[test]
fn other_parsers_read_the_metrics() {
    let test = "other_parsers_read_the_metrics";
    let program = "import sys\n\
                   from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics\n\
                   from prometheus_client.parser import text_string_to_metric_families as text\n\
                   parse = open_metrics if sys.argv[1] == 'open' else text\n\
                   list(parse(sys.stdin.read()))";
    let has_it = |python: &&str| {
        let status = Command::new(python).args(["-c", "import prometheus_client"]).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    };
    // Debian's packages are those of its own Python.
    let Some(python) = ["python3", "/usr/bin/python3"].into_iter().find(has_it) else {
        return skip(test, "prometheus_client for Python is not installed");
    };
    let (server, _folder, socket) = server();
    read_64_kib(&server, "a");
    for (format, accept) in [("open", "application/openmetrics-text"), ("text", "text/plain")] {
        let (_, body) = get(UnixStream::connect(&socket).expect("a server"), &format!("Accept: {accept}\r\n"));
        let mut python = Command::new(python);
        let mut child = python.args(["-c", program, format]).stdin(Stdio::piped()).spawn().expect("python3");
        child.stdin.take().expect("a pipe").write_all(body.as_bytes()).expect("a reader");
        assert!(child.wait().expect("a child").success(), "{format}");
    }
}

#[test]
fn many_disks_have_a_bounded_number_of_rows() {
    let (server, _folder, socket) = server();
    let mut control = Control::open(&server);
    for batch in 0..5 {
        let names: Vec<_> = (0..500).map(|number| format!("fork-{batch}-{number}")).collect();
        control.done(&json!({"command": "fork", "from": "base", "names": names}));
    }
    control.done(&json!({"command": "fork", "from": "base", "names": ["0".repeat(129), "0".repeat(128)]}));
    let metrics = scrape(&socket);
    assert_eq!(metrics.rows("pagefold_disk_info"), 2000);
    // Three disks and two long names in addition to the forks.
    assert_eq!(metrics.get("pagefold_disks_without_rows", &[]), Some(505.0));
    let long = |len: usize| metrics.get("pagefold_disk_size_bytes", &[("disk", &"0".repeat(len))]);
    assert!(long(128).is_some() && long(129).is_none());
}

#[test]
fn sockets_are_those_that_were_asked_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("metrics.sock");
    let path = socket.to_str().expect("a plain path");
    let server = Server::start(&["--size", "1M", "--mode", "0660", "--metrics", path, "--metrics", "127.0.0.1:0"]);
    assert_eq!(fs::metadata(&socket).expect("a socket").permissions().mode() & 0o777, 0o660);
    assert!(scrape(&socket).families.len() > 30);
    let (status, messages) = server.end(rustix::process::Signal::TERM);
    assert!(status.success(), "{messages}");
    assert!(messages.contains("metrics on http://127.0.0.1:"), "{messages}");
    assert!(!socket.exists(), "the socket was left behind");

    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address");
    let directory = folder.path().join("run");
    let mut serve = pagefold();
    serve.args(["serve", "--size", "1M", "--metrics", &address.to_string(), "--dir"]).arg(&directory);
    let message = run_to_fail(&mut serve);
    assert!(message.contains(&format!("cannot serve metrics on {address}")), "{message}");
    let message = run_to_fail(pagefold().args(["serve", "--size", "1M", "--metrics", "metrics.sock"]));
    assert!(message.contains("a path") || message.contains("the path"), "{message}");
    drop(TcpStream::connect(address));
}

/// A different start time would mean that the disks are lost.
#[test]
fn a_process_that_takes_over_has_the_first_ones_time() {
    let (mut server, _folder, socket) = server();
    let path = socket.to_str().expect("a plain path").to_owned();
    let time = |metrics: &Metrics| metrics.get("pagefold_start_time_seconds", &[]);
    let first = time(&scrape(&socket)).expect("a time");
    for _ in 0..2 {
        server.take_over(&["--metrics", &path]);
        // The new process creates the socket once the previous one has ended.
        let deadline = Instant::now() + Duration::from_secs(60);
        while UnixStream::connect(&socket).is_err() {
            assert!(Instant::now() < deadline, "no metrics");
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(time(&scrape(&socket)), Some(first));
    }
}
