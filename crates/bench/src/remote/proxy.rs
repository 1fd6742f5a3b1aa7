//! A proxy that makes a server on this machine as far away as one in another data centre: each
//! request waits, and all responses share one line. It counts what passes.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    ops::Range,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;

/// Bytes that are sent at a time.
const PIECE_BYTES: usize = 16 << 10;

/// The maximum length of a line of a head, and the maximum number of lines.
const MOST_LINE_BYTES: u64 = 16 << 10;
const MOST_LINES: usize = 200;

/// How far away the servers are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Distance {
    /// How long each request waits.
    pub(super) delay: Duration,
    /// The bytes per second of all responses together.
    pub(super) bytes_a_second: f64,
}

/// The server or the files behind a proxy.
#[derive(Clone, Debug)]
pub(super) enum Behind {
    Server(SocketAddr),
    /// Files, for programs that read from web servers.
    Folder(PathBuf),
}

/// A request that passed.
#[derive(Clone, Debug)]
pub(super) struct Passed {
    /// The path, without a query.
    pub(super) path: String,
    pub(super) range: Option<Range<u64>>,
    /// The bytes of the request's body.
    pub(super) sent_bytes: u64,
    /// The bytes of the response's body.
    pub(super) bytes: u64,
}

/// A proxy on a port of its own, until it is dropped.
pub(super) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    behind: Behind,
    distance: Distance,
    /// When the line is free again.
    line: Mutex<Instant>,
    passed: Mutex<Log>,
    ended: AtomicBool,
}

#[derive(Default)]
struct Log {
    /// The number of the first request that [`take`](Proxy::take) has not returned yet.
    first: usize,
    requests: Vec<Passed>,
}

impl Log {
    /// Adds a request and returns its number.
    fn add(&mut self, request: Passed) -> usize {
        self.requests.push(request);
        self.first + self.requests.len() - 1
    }

    fn count(&mut self, number: usize, bytes: u64) {
        if let Some(passed) = number.checked_sub(self.first).and_then(|at| self.requests.get_mut(at)) {
            passed.bytes += bytes;
        }
    }

    fn take(&mut self) -> Vec<Passed> {
        self.first += self.requests.len();
        std::mem::take(&mut self.requests)
    }
}

impl Proxy {
    pub(super) fn start(behind: Behind, distance: Distance) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("no port for the proxy")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            behind,
            distance,
            line: Mutex::new(Instant::now()),
            passed: Mutex::default(),
            ended: AtomicBool::new(false),
        });
        let of_thread = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if of_thread.ended.load(Relaxed) {
                    break;
                }
                let shared = Arc::clone(&of_thread);
                // A client or a server that disconnects ends only its own connection.
                thread::spawn(move || drop(shared.serve(&client)));
            }
        });
        Ok(Self { address, shared })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the requests that passed since the last call.
    pub(super) fn take(&self) -> Vec<Passed> {
        lock(&self.shared.passed).take()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ended.store(true, Relaxed);
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    /// Answers one request of a connection, then closes the connection.
    fn serve(&self, client: &TcpStream) -> io::Result<()> {
        client.set_nodelay(true)?;
        let mut requests = BufReader::new(client.try_clone()?);
        let Some(request) = Head::read(&mut requests)? else { return Ok(()) };
        thread::sleep(self.distance.delay);
        let sent_bytes = request.len_bytes().unwrap_or(0);
        let one = Passed { path: request.path(), range: request.range(), sent_bytes, bytes: 0 };
        let number = lock(&self.passed).add(one);
        match &self.behind {
            Behind::Server(address) => self.forward(&request, &mut requests, *address, client, number),
            Behind::Folder(folder) => self.send_file(&request, folder, client, number),
        }
    }

    /// Passes a request on, and the response back.
    fn forward(
        &self,
        request: &Head,
        requests: &mut BufReader<TcpStream>,
        address: SocketAddr,
        mut client: &TcpStream,
        number: usize,
    ) -> io::Result<()> {
        let mut body = vec![0; request.len_bytes().unwrap_or(0) as usize];
        requests.read_exact(&mut body)?;
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let mut server = BufReader::new(stream);
        server.get_mut().write_all(&[request.closing(), body].concat())?;
        let head = loop {
            match Head::read(&mut server)? {
                Some(head) if head.word(1).starts_with('1') => {}
                Some(head) => break head,
                None => return Ok(()),
            }
        };
        client.write_all(&head.closing())?;
        // The server closes the connection after the body.
        self.copy(&mut server, client, number)
    }

    /// Copies a body at the speed of the line.
    fn copy(&self, from: &mut dyn Read, mut to: &TcpStream, number: usize) -> io::Result<()> {
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            let len = from.read(&mut piece)?;
            if len == 0 {
                return Ok(());
            }
            self.wait_for_line(len);
            lock(&self.passed).count(number, len as u64);
            to.write_all(&piece[..len])?;
        }
    }

    fn wait_for_line(&self, bytes: usize) {
        let time = Duration::from_secs_f64(bytes as f64 / self.distance.bytes_a_second);
        let until = {
            let mut free = lock(&self.line);
            *free = (*free).max(Instant::now()) + time;
            *free
        };
        thread::sleep(until.saturating_duration_since(Instant::now()));
    }

    /// Sends a file, or the range of it that is asked for.
    fn send_file(&self, request: &Head, folder: &Path, mut client: &TcpStream, number: usize) -> io::Result<()> {
        let Ok(mut file) = File::open(folder.join(request.path().trim_start_matches('/'))) else {
            return client.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        };
        let size = file.metadata()?.len();
        let range = request.range().map(|range| range.start.min(size)..range.end.min(size));
        let (status, range) = range.map_or(("200 OK", 0..size), |range| ("206 Partial Content", range));
        let len = range.end - range.start;
        let mut head =
            format!("HTTP/1.1 {status}\r\nAccept-Ranges: bytes\r\nConnection: close\r\nContent-Length: {len}\r\n");
        if status.starts_with("206") {
            head += &format!("Content-Range: bytes {}-{}/{size}\r\n", range.start, range.end.saturating_sub(1));
        }
        client.write_all((head + "\r\n").as_bytes())?;
        if request.word(0) != "HEAD" {
            file.seek(SeekFrom::Start(range.start))?;
            self.copy(&mut file.take(len), client, number)?;
        }
        Ok(())
    }
}

/// The first line and the headers of a request or a response.
struct Head {
    first: String,
    /// The other lines; several may have the same name.
    lines: Vec<String>,
    /// Headers by name, in lower case.
    headers: HashMap<String, String>,
}

impl Head {
    /// Returns `None` at the end of the connection.
    fn read(from: &mut impl BufRead) -> io::Result<Option<Self>> {
        let mut head = Self { first: String::new(), lines: Vec::new(), headers: HashMap::new() };
        for number in 0..MOST_LINES {
            let mut line = String::new();
            if from.take(MOST_LINE_BYTES).read_line(&mut line)? == 0 {
                return Ok(None);
            }
            match (line.trim_end(), line.trim_end().split_once(':')) {
                ("", _) => return Ok(Some(head)),
                (first, _) if number == 0 => first.clone_into(&mut head.first),
                (_, Some((name, value))) => {
                    head.headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
                    head.lines.push(line.trim_end().to_owned());
                }
                _ => {}
            }
        }
        Err(io::Error::other("too many headers"))
    }

    fn word(&self, number: usize) -> String {
        self.first.split(' ').nth(number).unwrap_or_default().to_owned()
    }

    fn path(&self) -> String {
        self.word(1).split('?').next().unwrap_or_default().to_owned()
    }

    fn len_bytes(&self) -> Option<u64> {
        self.headers.get("content-length")?.parse().ok()
    }

    fn range(&self) -> Option<Range<u64>> {
        let (first, last) = self.headers.get("range")?.strip_prefix("bytes=")?.split_once('-')?;
        Some(first.parse().ok()?..last.parse::<u64>().map_or(u64::MAX, |last| last + 1))
    }

    /// Returns its text, changed so that the connection closes after one request.
    fn closing(&self) -> Vec<u8> {
        let stays = |line: &&String| {
            let name = line.split(':').next().unwrap_or_default();
            !["connection", "expect"].iter().any(|other| name.eq_ignore_ascii_case(other))
        };
        let lines: String = self.lines.iter().filter(stays).map(|line| format!("{line}\r\n")).collect();
        format!("{}\r\n{lines}Connection: close\r\n\r\n", self.first).into_bytes()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests a range over a new connection.
    fn ask(address: SocketAddr, range: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "GET /a?b HTTP/1.1\r\nHost: x\r\nRange: bytes={range}\r\nConnection: close\r\n\r\n").unwrap();
        let mut reader = BufReader::new(stream);
        let head = Head::read(&mut reader).unwrap().unwrap();
        reader.read_exact(&mut vec![0; head.len_bytes().unwrap() as usize]).unwrap();
        head.word(1)
    }

    #[test]
    fn headers_of_one_name_stay_and_the_connection_does_not() {
        let text = b"GET / HTTP/1.1\r\nAccept: a\r\nConnection: keep-alive\r\nAccept: b\r\n\r\n";
        let head = Head::read(&mut &text[..]).unwrap().unwrap();
        let closing = "GET / HTTP/1.1\r\nAccept: a\r\nAccept: b\r\nConnection: close\r\n\r\n";
        assert_eq!(String::from_utf8(head.closing()).unwrap(), closing);
    }

    #[test]
    fn requests_wait_and_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a"), vec![7; 100_000]).unwrap();
        let distance = Distance { delay: Duration::from_millis(5), bytes_a_second: 1e9 };
        let web = Proxy::start(Behind::Folder(folder.path().to_owned()), distance).unwrap();
        let proxy = Proxy::start(Behind::Server(web.address()), distance).unwrap();
        let start = Instant::now();
        assert_eq!(ask(proxy.address(), "10-19"), "206");
        assert!(start.elapsed() >= distance.delay * 2);
        let [one] = &proxy.take()[..] else { panic!("one request") };
        assert_eq!((&*one.path, one.range.clone(), one.bytes), ("/a", Some(10..20), 10));
        assert!(proxy.take().is_empty() && web.take().len() == 1);
        assert_eq!(ask(proxy.address(), "0-"), "206");
        assert_eq!(proxy.take()[0].bytes, 100_000);
    }
}
