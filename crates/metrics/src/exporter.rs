//! Sockets, clients, and the thread that serves them.
//!
//! ```text
//! client:  receives ── its request is there ──> sends ── all is sent ──> leaves ── end, or time ──> gone
//! ```
//!
//! A client that takes too long is dropped. If there are too many clients, the oldest one is
//! dropped. Metrics are written at most as often as [`REST`] permits, once in each format, and
//! shared by clients.

use std::{
    io::{self, Read, Write},
    net::{TcpListener, TcpStream},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::{UnixListener, UnixStream},
    },
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    io::Errno,
};

use crate::{
    Format, Text,
    request::{MOST_BYTES, Request, decode},
};

/// Maximum number of simultaneous clients.
const MOST_CLIENTS: usize = 8;
/// How long a client may take to send its request, and then to take the answer. Prometheus waits as long
/// by default.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a client may take to end its side. If it still sends when the socket is closed, the answer
/// is lost.
const FAREWELL: Duration = Duration::from_secs(1);
/// Metrics are shared with further clients for this many times the duration of writing them. So
/// writing them takes at most 5 % of a CPU, however often clients ask.
const REST: u32 = 20;
/// Maximum number of answers that slow clients may keep in memory, in addition to the latest of
/// each format.
const MOST_OLD_ANSWERS: usize = 1;
/// Pause in accepting clients after the system failed to accept one.
const PAUSE: Duration = Duration::from_millis(200);

/// The source of an exporter's metrics.
pub trait Source: Send + Sync {
    /// Writes all metrics as they are now. It is called by the exporter's thread, and clients wait.
    fn write(&self, text: &mut Text);
}

/// A listening socket.
#[derive(Debug)]
pub enum Listener {
    /// A Unix socket.
    Unix(UnixListener),
    /// A TCP socket.
    Tcp(TcpListener),
}

impl Listener {
    fn accept(&self) -> io::Result<Socket> {
        let socket = match self {
            Self::Unix(listener) => Socket::Unix(listener.accept()?.0),
            Self::Tcp(listener) => Socket::Tcp(listener.accept()?.0),
        };
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(socket)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(listener) => listener.as_fd(),
            Self::Tcp(listener) => listener.as_fd(),
        }
    }
}

#[derive(Debug)]
enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Socket {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(buf),
            Self::Tcp(stream) => stream.read(buf),
        }
    }

    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write(buf),
            Self::Tcp(stream) => stream.write(buf),
        }
    }

    /// Ends this side. If that fails, the client has left.
    fn end(&self) {
        let _ = rustix::net::shutdown(self, rustix::net::Shutdown::Write);
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(stream) => stream.as_fd(),
            Self::Tcp(stream) => stream.as_fd(),
        }
    }
}

/// Serves metrics in a separate thread, until this is dropped.
#[derive(Debug)]
pub struct Exporter {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    ended: AtomicBool,
    wake: OwnedFd,
}

impl Exporter {
    /// Serves the metrics of `source` on these sockets.
    ///
    /// # Errors
    /// The system failed.
    pub fn start(listeners: Vec<Listener>, source: Arc<dyn Source>) -> io::Result<Self> {
        for listener in &listeners {
            rustix::io::ioctl_fionbio(listener, true)?;
        }
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(Shared { ended: AtomicBool::new(false), wake });
        let server = Server {
            shared: Arc::clone(&shared),
            listeners,
            source,
            clients: Vec::new(),
            latest: Vec::new(),
            rests_until: Instant::now(),
            paused_until: None,
        };
        let thread = thread::Builder::new().name("metrics".to_owned()).spawn(move || server.run())?;
        Ok(Self { shared, thread: Some(thread) })
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.shared.ended.store(true, Relaxed);
        // The counter cannot overflow.
        let _ = rustix::io::write(&self.shared.wake, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // A panic has been reported.
            let _ = thread.join();
        }
    }
}

/// Metrics in a format.
#[derive(Debug)]
struct Answer {
    format: Format,
    text: String,
    /// When the text was made.
    at: Instant,
}

/// The clients, in the order in which they connected.
#[derive(Debug)]
struct Client {
    socket: Socket,
    state: State,
    deadline: Instant,
}

#[derive(Debug)]
enum State {
    /// The received part of the request.
    Receives(Vec<u8>),
    Sends(Sending),
    /// The answer was sent.
    Leaves,
    Gone,
}

#[derive(Debug)]
struct Sending {
    head: Vec<u8>,
    /// The body, which follows the head.
    answer: Option<Arc<Answer>>,
    sent: usize,
}

impl Sending {
    /// Returns the bytes left to send.
    fn left(&self) -> &[u8] {
        let body = self.answer.as_ref().map_or("", |answer| &answer.text).as_bytes();
        match self.sent.checked_sub(self.head.len()) {
            None => &self.head[self.sent..],
            Some(sent) => &body[sent.min(body.len())..],
        }
    }
}

fn head(status: &str, content_type: &str, more: &str, len_bytes: usize) -> String {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len_bytes}\r\n{more}Connection: \
         close\r\n\r\n"
    )
}

/// Returns the result of an operation on a socket, `None` if it would block.
fn unless_blocked(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(None),
        Err(error) => Err(error),
    }
}

impl Client {
    fn new(socket: Socket) -> Self {
        Self { socket, state: State::Receives(Vec::new()), deadline: Instant::now() + PATIENCE }
    }

    /// Returns the event that the client is waited for.
    fn flags(&self) -> PollFlags {
        if matches!(self.state, State::Sends(_)) { PollFlags::OUT } else { PollFlags::IN }
    }

    /// Receives a part of the request. Returns the request once it is complete.
    fn receive(&mut self) -> io::Result<Option<Request>> {
        let State::Receives(bytes) = &mut self.state else { return Ok(None) };
        let mut buf = [0; MOST_BYTES];
        match unless_blocked(self.socket.read(&mut buf[bytes.len()..]))? {
            None => Ok(None),
            Some(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Some(received) => {
                let start = bytes.len();
                bytes.extend_from_slice(&buf[start..start + received]);
                Ok(Some(decode(bytes)).filter(|request| *request != Request::Partial))
            }
        }
    }

    /// Starts sending an answer.
    fn answer(&mut self, head: String, answer: Option<Arc<Answer>>) {
        self.state = State::Sends(Sending { head: head.into_bytes(), answer, sent: 0 });
        self.deadline = Instant::now() + PATIENCE;
    }

    /// Sends as much as the socket takes.
    fn send(&mut self) -> io::Result<()> {
        let State::Sends(sending) = &mut self.state else { return Ok(()) };
        while let left @ [_, ..] = sending.left() {
            match unless_blocked(self.socket.write(left))? {
                None => return Ok(()),
                Some(sent) => sending.sent += sent,
            }
        }
        self.socket.end();
        self.state = State::Leaves;
        self.deadline = Instant::now() + FAREWELL;
        Ok(())
    }

    /// Discards data that a client still sends.
    fn leave(&mut self) -> io::Result<()> {
        if unless_blocked(self.socket.read(&mut [0; MOST_BYTES]))? == Some(0) {
            self.state = State::Gone;
        }
        Ok(())
    }
}

struct Server {
    shared: Arc<Shared>,
    listeners: Vec<Listener>,
    source: Arc<dyn Source>,
    clients: Vec<Client>,
    /// The answers for further clients: at most one of each format.
    latest: Vec<Arc<Answer>>,
    /// When these are too old. Until then, each format is made once.
    rests_until: Instant,
    paused_until: Option<Instant>,
}

impl Server {
    fn run(mut self) {
        while !self.shared.ended.load(Relaxed) {
            let (accepts, ready) = self.wait();
            for (client, is_ready) in ready.into_iter().enumerate() {
                if is_ready && self.serve(client).is_err() {
                    self.clients[client].state = State::Gone;
                }
            }
            let now = Instant::now();
            self.clients.retain(|client| !matches!(client.state, State::Gone) && client.deadline > now);
            self.drop_latest(now);
            for number in accepts {
                self.accept(number);
            }
        }
    }

    /// Waits for something to do. Returns the listeners that have clients, and for each client whether it
    /// is ready.
    fn wait(&mut self) -> (Vec<usize>, Vec<bool>) {
        let now = Instant::now();
        self.paused_until = self.paused_until.filter(|until| *until > now);
        let listens = if self.paused_until.is_none() { PollFlags::IN } else { PollFlags::empty() };
        let mut fds = vec![PollFd::new(&self.shared.wake, PollFlags::IN)];
        fds.extend(self.listeners.iter().map(|listener| PollFd::new(listener, listens)));
        fds.extend(self.clients.iter().map(|client| PollFd::new(&client.socket, client.flags())));
        let deadlines = self.clients.iter().map(|client| client.deadline).chain(self.paused_until);
        let rest = Some(self.rests_until).filter(|_| !self.latest.is_empty());
        let next = deadlines.chain(rest).min();
        let timeout = next.map(|next| next.saturating_duration_since(now));
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            // Fails only for lack of memory.
            Err(_) => thread::sleep(PAUSE),
        }
        let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let clients = 1 + self.listeners.len();
        let accepts = (0..self.listeners.len()).filter(|number| is_ready(&fds[1 + number])).collect();
        (accepts, fds[clients..].iter().map(is_ready).collect())
    }

    fn accept(&mut self, number: usize) {
        match self.listeners[number].accept() {
            Ok(socket) => {
                if self.clients.len() == MOST_CLIENTS {
                    // A client that does not take its answer is closed first.
                    let sends = |client: &Client| matches!(client.state, State::Sends(_));
                    let slow = self.clients.iter().position(|client| !sends(client)).unwrap_or(0);
                    self.clients.remove(slow);
                }
                self.clients.push(Client::new(socket));
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(_) => self.paused_until = Some(Instant::now() + PAUSE),
        }
    }

    /// Continues with a client.
    fn serve(&mut self, number: usize) -> io::Result<()> {
        let client = &mut self.clients[number];
        if let Some(request) = client.receive()? {
            match request {
                Request::Partial => {}
                Request::Refused(refusal) => {
                    let (status, more, text) = refusal.answer();
                    client.answer(head(status, "text/plain; charset=utf-8", more, text.len()) + text, None);
                }
                Request::Metrics { format, head_only } => {
                    let answer = self.metrics(format);
                    let head = head("200 OK", format.content_type(), "", answer.text.len());
                    self.clients[number].answer(head, Some(answer).filter(|_| !head_only));
                }
            }
        } else if matches!(client.state, State::Leaves) {
            return client.leave();
        }
        self.clients[number].send()
    }

    /// Drops answers that are too old for further clients.
    fn drop_latest(&mut self, now: Instant) {
        if self.rests_until <= now {
            self.latest.clear();
        }
    }

    /// Returns the present metrics, or recent ones.
    fn metrics(&mut self, format: Format) -> Arc<Answer> {
        let at = Instant::now();
        self.drop_latest(at);
        if let Some(latest) = self.latest.iter().find(|latest| latest.format == format) {
            return Arc::clone(latest);
        }
        self.drop_old_answers();
        let mut text = Text::new(format);
        self.source.write(&mut text);
        let text = text.finish();
        let answer = Arc::new(Answer { format, text, at });
        self.latest.push(Arc::clone(&answer));
        // The time of a format that was written before extends the pause.
        self.rests_until = self.rests_until.max(at) + at.elapsed() * (REST + 1);
        answer
    }

    /// Drops clients that have been taking old answers for the longest.
    fn drop_old_answers(&mut self) {
        let is_latest = |answer: &Arc<Answer>| self.latest.iter().any(|latest| Arc::ptr_eq(latest, answer));
        let made = |client: &Client| match &client.state {
            State::Sends(Sending { answer: Some(answer), .. }) if !is_latest(answer) => Some(answer.at),
            _ => None,
        };
        let mut all: Vec<_> = self.clients.iter().filter_map(made).collect();
        all.sort_unstable();
        all.dedup();
        let Some(newest) = all.len().checked_sub(1 + MOST_OLD_ANSWERS).map(|last| all[last]) else { return };
        for client in &mut self.clients {
            if made(client).is_some_and(|at| at <= newest) {
                client.state = State::Gone;
            }
        }
    }
}
