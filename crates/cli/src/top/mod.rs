//! `pagefold top`: shows what the disks of a server do, until a key is pressed.
//!
//! ```text
//! figures   two answers of the server, and the rates between them
//! view      the screen: what is shown, and how
//! ```

mod figures;
mod view;

use std::{
    env, io,
    io::IsTerminal,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow};
use pagefold_control::{Client, Command, Stat};
use ratatui::crossterm::event::{self, Event, KeyEventKind};

use self::{
    figures::{Sample, figures},
    view::{Column, View},
};
use crate::{peer::Peer, report::misuse, signals};

/// How soon signals are noticed.
const GLANCE: Duration = Duration::from_millis(200);

/// Watch what the disks of a server do
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pagefold top
  pagefold top --interval 10 --sort memory

Keys: q ends it, the arrows left and right choose the column to sort by, r reverses the order, up, \
down, page up and page down scroll, and the space bar pauses.

STORED counts the pages that a disk wrote itself, MEMORY what they take, and RATIO is STORED \
divided by MEMORY. Rates are those of the last interval. Times are means of one in 16 requests of \
each client, from a request's receipt to its reply.")]
pub(crate) struct Args {
    /// Seconds between two updates
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,

    /// Sort by this column
    #[arg(long, value_enum, value_name = "COLUMN", default_value_t = Column::Requests)]
    sort: Column,

    #[command(flatten)]
    peer: Peer,
}

/// The terminal. Its earlier state is restored when this is dropped, or before a panic is reported.
struct Screen(ratatui::DefaultTerminal);

impl Screen {
    fn open() -> io::Result<Self> {
        ratatui::try_init().map(Self).inspect_err(|_| ratatui::restore())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let is_dumb = env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    if is_dumb || !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        return Err(misuse(anyhow!(
            "top needs a terminal that can move its cursor: 'pagefold stat' prints the figures"
        )));
    }
    let mut client = args.peer.connect()?;
    let mut view = View::new(args.sort, Duration::from_secs(args.interval));
    let mut last = ask(&mut client)?;
    let has_signal = watch_signals().context("cannot catch signals")?;
    let mut screen = Screen::open().context("cannot use the terminal")?;
    view.show(figures(&last, &last));
    loop {
        screen.0.draw(|frame| view.draw(frame))?;
        let next = last.at + view.interval();
        let redraws = loop {
            if has_signal.load(Relaxed) {
                return Ok(());
            }
            let left = next.saturating_duration_since(Instant::now());
            if left.is_zero() && !view.is_paused() {
                break false;
            }
            let most = if view.is_paused() { GLANCE } else { left.min(GLANCE) };
            if !event::poll(most)? {
                continue;
            }
            match event::read()? {
                Event::Key(key) if key.kind == KeyEventKind::Press => {
                    if view.press(key.code, key.modifiers) {
                        return Ok(());
                    }
                    break true;
                }
                Event::Resize(..) => break true,
                _ => {}
            }
        };
        if !redraws {
            let now = ask(&mut client)?;
            view.show(figures(&last, &now));
            last = now;
        }
    }
}

fn ask(client: &mut Client) -> anyhow::Result<Sample> {
    let stat: Stat = client.call(&Command::Stat { name: None })?;
    Ok(Sample { at: Instant::now(), stat })
}

/// Returns a flag that becomes true when a signal should end the program.
fn watch_signals() -> io::Result<Arc<AtomicBool>> {
    let mut signals = signals::catch()?;
    let has_signal = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&has_signal);
    let wait = move || {
        if signals.forever().next().is_some() {
            seen.store(true, Relaxed);
        }
    };
    thread::Builder::new().name("signals".to_owned()).spawn(wait)?;
    Ok(has_signal)
}
