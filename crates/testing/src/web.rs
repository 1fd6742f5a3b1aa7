//! A web server whose replies a test decides.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct Request {
    /// Such as `GET`.
    pub method: String,
    /// The path with the query.
    pub path: String,
    /// The headers, by their names in lower case.
    pub headers: HashMap<String, String>,
    /// The body.
    pub body: Vec<u8>,
}

impl Request {
    /// Returns the range that is asked for.
    pub fn range(&self) -> Option<Range<u64>> {
        let (first, last) = self.headers.get("range")?.strip_prefix("bytes=")?.split_once('-')?;
        Some(first.parse().ok()?..last.parse::<u64>().ok()? + 1)
    }
}

/// Stops a response while it is true.
pub type Stall = Arc<AtomicBool>;

/// The content that the server sends.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    /// The status.
    pub status: u16,
    /// The headers, without the length of the body.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
    /// Closes the connection after this number of bytes of the body.
    pub cut: Option<usize>,
    /// Sends no more than this number of bytes of the body while the flag is set.
    pub stall: Option<(usize, Stall)>,
    /// Repeats the body without end, as if that were its length.
    pub endless: bool,
    /// The time until the reply is sent.
    pub delay: Duration,
}

impl Reply {
    /// Returns a reply without a body.
    pub fn status(status: u16) -> Self {
        Self { status, ..Self::default() }
    }

    /// Adds a header.
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.headers.push((name.to_owned(), value.to_string()));
        self
    }

    /// Returns a file, or the range of it that is asked for.
    pub fn file(request: &Request, bytes: &[u8]) -> Self {
        let Some(range) = request.range() else { return Self { body: bytes.to_vec(), ..Self::status(200) } };
        let Some(part) = bytes.get(range.start as usize..(range.end as usize).min(bytes.len())) else {
            return Self::status(416);
        };
        let of = format!("bytes {}-{}/{}", range.start, range.start + part.len() as u64 - 1, bytes.len());
        Self { body: part.to_vec(), ..Self::status(206) }.with("content-range", of)
    }
}

type Handler = dyn Fn(&Request) -> Reply + Send + Sync;

/// A server on a port of its own, until it is dropped.
pub struct Server {
    /// Where the server listens.
    pub address: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
    connections: Arc<AtomicUsize>,
    ended: Arc<AtomicBool>,
}

impl Server {
    /// Starts a server.
    pub fn start(handler: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let (requests, ended) = (Arc::<Mutex<Vec<Request>>>::default(), Arc::new(AtomicBool::new(false)));
        let connections = Arc::new(AtomicUsize::new(0));
        let accepted = Arc::clone(&connections);
        let server = Self { address, requests: Arc::clone(&requests), connections, ended: Arc::clone(&ended) };
        let handler: Arc<Handler> = Arc::new(handler);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if ended.load(Relaxed) {
                    break;
                }
                accepted.fetch_add(1, Relaxed);
                let (handler, requests, ended) = (Arc::clone(&handler), Arc::clone(&requests), Arc::clone(&ended));
                thread::spawn(move || serve(stream, &*handler, &requests, &ended));
            }
        });
        server
    }

    /// Serves files by their paths.
    pub fn of_files<const N: usize>(files: [(&str, Vec<u8>); N]) -> Self {
        let files = files.map(|(path, bytes)| (path.to_owned(), bytes));
        Self::start(move |request| {
            let file = files.iter().find(|(path, _)| *path == request.path);
            file.map_or(Reply::status(404), |(_, bytes)| Reply::file(request, bytes))
        })
    }

    /// Returns the URL of a path.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Returns the number of connections until now.
    pub fn connections(&self) -> usize {
        self.connections.load(Relaxed)
    }

    /// Returns all requests until now.
    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().expect("not poisoned").clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ended.store(true, Relaxed);
        let _ = TcpStream::connect(self.address);
    }
}

fn serve(stream: TcpStream, handler: &Handler, requests: &Mutex<Vec<Request>>, ended: &AtomicBool) {
    let _ = stream.set_nodelay(true);
    let mut reader = BufReader::new(stream.try_clone().expect("a stream"));
    while let Some(request) = receive(&mut reader) {
        requests.lock().expect("not poisoned").push(request.clone());
        let reply = handler(&request);
        thread::sleep(reply.delay);
        if send(&stream, &request, &reply, ended).is_none() {
            return;
        }
    }
}

fn receive(reader: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|len| *len > 0)?;
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, path) = (words.next()?, words.next()?);
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|len| *len > 0)?;
        match line.trim_end().split_once(':') {
            Some((name, value)) => headers.insert(name.to_ascii_lowercase(), value.trim().to_owned()),
            None => break,
        };
    }
    let len = headers.get("content-length").map_or(0, |len: &String| len.parse().expect("a length"));
    let mut body = vec![0; len];
    reader.read_exact(&mut body).ok()?;
    Some(Request { method, path, headers, body })
}

/// Returns `None` if the connection ends.
fn send(mut stream: &TcpStream, request: &Request, reply: &Reply, ended: &AtomicBool) -> Option<()> {
    let mut head = format!("HTTP/1.1 {} x\r\n", reply.status);
    for (name, value) in &reply.headers {
        head += &format!("{name}: {value}\r\n");
    }
    if !reply.headers.iter().any(|(name, _)| name == "content-length" || name == "transfer-encoding") {
        let len = if reply.endless { u64::MAX >> 1 } else { reply.body.len() as u64 };
        head += &format!("content-length: {len}\r\n");
    }
    stream.write_all(format!("{head}\r\n").as_bytes()).ok()?;
    if request.method == "HEAD" {
        return Some(());
    }
    let body = &reply.body[..reply.cut.unwrap_or(reply.body.len()).min(reply.body.len())];
    let mut sent = 0;
    if let Some((at, stall)) = &reply.stall {
        sent = (*at).min(body.len());
        stream.write_all(&body[..sent]).ok()?;
        while stall.load(Relaxed) && !ended.load(Relaxed) {
            thread::sleep(Duration::from_millis(5));
        }
    }
    stream.write_all(&body[sent..]).ok()?;
    while reply.endless && !ended.load(Relaxed) {
        stream.write_all(body).ok()?;
    }
    reply.cut.is_none().then_some(())
}
