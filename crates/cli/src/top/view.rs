//! The screen: what is shown, and how.

use std::{cmp::Ordering, time::Duration};

use clap::ValueEnum;
use ratatui::{
    Frame,
    crossterm::event::{KeyCode, KeyModifiers},
    layout::{Alignment, Constraint, Layout},
    style::{Modifier, Style},
    text::{Line, Text},
    widgets::{Cell, Paragraph, Row as TableRow, Table, TableState},
};

use super::figures::{Row, Shown};
use crate::{size, stat::age, text::plain};

/// A column of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Column {
    Name,
    Kind,
    Size,
    Stored,
    Memory,
    Ratio,
    Requests,
    Reads,
    Writes,
    ReadBytes,
    WrittenBytes,
    ReadTime,
    WriteTime,
    Errors,
    Waiting,
}

/// How a column is sorted.
enum Key<'a> {
    Text(&'a str),
    Number(f64),
}

impl Column {
    /// Returns the column's title and width.
    fn title(self) -> (&'static str, u16) {
        match self {
            Self::Name => ("NAME", 16),
            Self::Kind => ("KIND", 8),
            Self::Size => ("SIZE", 9),
            Self::Stored => ("STORED", 9),
            Self::Memory => ("MEMORY", 9),
            Self::Ratio => ("RATIO", 6),
            Self::Requests => ("REQ/s", 8),
            Self::Reads => ("READ/s", 8),
            Self::Writes => ("WRITE/s", 8),
            Self::ReadBytes => ("READ B/s", 9),
            Self::WrittenBytes => ("WRITE B/s", 9),
            Self::ReadTime => ("READ", 7),
            Self::WriteTime => ("WRITE", 7),
            Self::Errors => ("ERR/s", 6),
            Self::Waiting => ("WAIT", 5),
        }
    }

    fn key(self, row: &Row) -> Key<'_> {
        let rates = &row.rates;
        Key::Number(match self {
            Self::Name => return Key::Text(&row.name),
            Self::Kind => return Key::Text(row.kind),
            Self::Size => row.size_bytes as f64,
            Self::Stored => row.stored_bytes as f64,
            Self::Memory => row.memory_bytes as f64,
            Self::Ratio => row.ratio().unwrap_or(0.0),
            Self::Requests => rates.requests,
            Self::Reads => rates.reads,
            Self::Writes => rates.writes,
            Self::ReadBytes => rates.read_bytes,
            Self::WrittenBytes => rates.written_bytes,
            Self::ReadTime => rates.read_ns.unwrap_or(0.0),
            Self::WriteTime => rates.write_ns.unwrap_or(0.0),
            Self::Errors => rates.errors,
            Self::Waiting => row.waiting as f64,
        })
    }

    /// Orders texts from A to Z, and numbers from the largest.
    fn compare(self, a: &Row, b: &Row) -> Ordering {
        match (self.key(a), self.key(b)) {
            (Key::Number(a), Key::Number(b)) => b.total_cmp(&a),
            (Key::Text(a), Key::Text(b)) => a.cmp(b),
            _ => Ordering::Equal,
        }
    }

    fn text(self, row: &Row) -> String {
        let rates = &row.rates;
        let memory = |bytes| if row.kind == "base" { String::new() } else { size::show(bytes) };
        match self {
            Self::Name => plain(&row.name),
            Self::Kind => row.kind.to_owned(),
            Self::Size => size::show(row.size_bytes),
            Self::Stored => memory(row.stored_bytes),
            Self::Memory => memory(row.memory_bytes),
            Self::Ratio => row.ratio().map_or_else(String::new, |ratio| format!("{ratio:.2}")),
            Self::Requests => number(rates.requests),
            Self::Reads => number(rates.reads),
            Self::Writes => number(rates.writes),
            Self::ReadBytes => bytes(rates.read_bytes),
            Self::WrittenBytes => bytes(rates.written_bytes),
            Self::ReadTime => rates.read_ns.map_or_else(String::new, time),
            Self::WriteTime => rates.write_ns.map_or_else(String::new, time),
            Self::Errors => number(rates.errors),
            Self::Waiting => {
                if row.waiting > 0 {
                    row.waiting.to_string()
                } else {
                    String::new()
                }
            }
        }
    }
}

/// Returns a rate; nothing if it is 0.
fn number(rate: f64) -> String {
    match rate {
        0.0 => String::new(),
        rate if rate < 10.0 => format!("{rate:.1}"),
        rate => format!("{rate:.0}"),
    }
}

fn bytes(rate: f64) -> String {
    if rate == 0.0 { String::new() } else { size::show(rate as u64) }
}

fn time(ns: f64) -> String {
    match ns {
        ns if ns < 1e6 => format!("{:.1} µs", ns / 1e3),
        ns if ns < 1e9 => format!("{:.1} ms", ns / 1e6),
        ns => format!("{:.1} s", ns / 1e9),
    }
}

/// The content of the screen.
pub(super) struct View {
    shown: Option<Shown>,
    sort: Column,
    is_reversed: bool,
    is_paused: bool,
    interval: Duration,
    table: TableState,
    /// Rows that were visible.
    page: usize,
}

impl View {
    pub(super) fn new(sort: Column, interval: Duration) -> Self {
        let table = TableState::default().with_selected(0);
        Self { shown: None, sort, is_reversed: false, is_paused: false, interval, table, page: 1 }
    }

    pub(super) fn interval(&self) -> Duration {
        self.interval
    }

    pub(super) fn is_paused(&self) -> bool {
        self.is_paused
    }

    pub(super) fn show(&mut self, mut shown: Shown) {
        self.order(&mut shown.disks);
        self.shown = Some(shown);
    }

    fn order(&self, disks: &mut [Row]) {
        disks.sort_by(|a, b| {
            let order = self.sort.compare(a, b);
            let order = if self.is_reversed { order.reverse() } else { order };
            order.then_with(|| a.name.cmp(&b.name))
        });
    }

    /// Handles a key. Returns whether it ends the program.
    pub(super) fn press(&mut self, key: KeyCode, modifiers: KeyModifiers) -> bool {
        let columns = Column::value_variants();
        let at = columns.iter().position(|column| *column == self.sort).unwrap_or(0);
        match key {
            KeyCode::Char('q') | KeyCode::Esc => return true,
            KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => return true,
            KeyCode::Left => self.sort = columns[at.checked_sub(1).unwrap_or(columns.len() - 1)],
            KeyCode::Right => self.sort = columns[(at + 1) % columns.len()],
            KeyCode::Char('r') => self.is_reversed = !self.is_reversed,
            KeyCode::Char(' ') => self.is_paused = !self.is_paused,
            KeyCode::Up => self.table.scroll_up_by(1),
            KeyCode::Down => self.table.scroll_down_by(1),
            KeyCode::PageUp => self.table.scroll_up_by(u16::try_from(self.page).unwrap_or(u16::MAX)),
            KeyCode::PageDown => self.table.scroll_down_by(u16::try_from(self.page).unwrap_or(u16::MAX)),
            KeyCode::Home => self.table.select_first(),
            KeyCode::End => self.table.select_last(),
            _ => {}
        }
        if let Some(mut shown) = self.shown.take() {
            self.order(&mut shown.disks);
            self.shown = Some(shown);
        }
        false
    }

    pub(super) fn draw(&mut self, frame: &mut Frame<'_>) {
        let Self { shown: Some(shown), sort, is_paused, table, .. } = self else { return };
        let areas = Layout::vertical([Constraint::Length(3), Constraint::Min(0), Constraint::Length(1)]);
        let [top, middle, bottom] = areas.areas(frame.area());
        frame.render_widget(Paragraph::new(head(shown)), top);
        self.page = usize::from(middle.height.saturating_sub(1)).max(1);
        let columns = Column::value_variants();
        let plain = Style::new().add_modifier(Modifier::REVERSED);
        let titles = columns.iter().map(|column| {
            let style = if column == sort { plain.add_modifier(Modifier::BOLD | Modifier::UNDERLINED) } else { plain };
            cell(*column, column.title().0.to_owned()).style(style)
        });
        let rows = shown.disks.iter().map(|disk| TableRow::new(columns.iter().map(|of| cell(*of, of.text(disk)))));
        let widths = columns.iter().map(|column| match column {
            Column::Name => Constraint::Min(column.title().1),
            _ => Constraint::Length(column.title().1),
        });
        let list = Table::new(rows, widths)
            .header(TableRow::new(titles).style(plain))
            .row_highlight_style(Style::new().add_modifier(Modifier::BOLD));
        frame.render_stateful_widget(list, middle, table);
        let paused = if *is_paused { "  PAUSED" } else { "" };
        let keys = format!("q quit  ← → sort  r reverse  ↑ ↓ PgUp PgDn scroll  space pause{paused}");
        frame.render_widget(Paragraph::new(keys), bottom);
    }
}

fn cell(column: Column, text: String) -> Cell<'static> {
    let side = if matches!(column, Column::Name | Column::Kind) { Alignment::Left } else { Alignment::Right };
    Cell::new(Text::from(text).alignment(side))
}

/// Returns a number of things.
fn counted(count: u64, thing: &str) -> String {
    if count == 1 { format!("1 {thing}") } else { format!("{count} {thing}s") }
}

/// Returns the lines about the whole server.
fn head(shown: &Shown) -> Vec<Line<'static>> {
    let Shown { version, pid, uptime_seconds, codec, connections, limit_bytes, all, disks } = shown;
    let limit = limit_bytes.map_or_else(String::new, |limit| {
        let percent = all.memory_bytes as f64 / limit.max(1) as f64 * 100.0;
        format!(" of {} ({percent:.0} %)", size::show(limit))
    });
    let ratio = all.ratio().map_or_else(String::new, |ratio| format!(", ratio {ratio:.2}"));
    let waiting = if all.waiting > 0 { format!(", {} WAIT FOR ROOM", all.waiting) } else { String::new() };
    let or_zero = |text: String| if text.is_empty() { "0".to_owned() } else { text };
    let rates = &all.rates;
    vec![
        Line::from(format!(
            "pagefold {version}, process {pid}, up {}, codec {codec}: {}, {}",
            age(*uptime_seconds),
            counted(disks.len() as u64, "disk"),
            counted(*connections, "connection")
        )),
        Line::from(format!(
            "stored {} in {}{limit}{ratio}",
            size::show(all.stored_bytes),
            size::show(all.memory_bytes)
        )),
        Line::from(format!(
            "reads {}/s, {}/s   writes {}/s, {}/s   errors {}/s{waiting}",
            or_zero(number(rates.reads)),
            or_zero(bytes(rates.read_bytes)),
            or_zero(number(rates.writes)),
            or_zero(bytes(rates.written_bytes)),
            or_zero(number(rates.errors))
        )),
    ]
}

#[cfg(test)]
mod tests {
    use ratatui::{Terminal, backend::TestBackend};

    use super::{
        super::figures::{Rates, Row, Shown},
        *,
    };

    fn row(name: &str, kind: &'static str, memory_bytes: u64, reads: f64) -> Row {
        let rates =
            Rates { requests: reads, reads, read_bytes: reads * 4096.0, read_ns: Some(12_345.0), ..Rates::default() };
        Row {
            name: name.to_owned(),
            kind,
            size_bytes: 1 << 30,
            stored_bytes: memory_bytes * 3,
            memory_bytes,
            waiting: 0,
            rates,
        }
    }

    fn shown() -> Shown {
        Shown {
            version: "1.2.3".to_owned(),
            pid: 77,
            uptime_seconds: 7300,
            codec: "fold".to_owned(),
            connections: 4,
            limit_bytes: Some(1 << 30),
            all: row("", "all", 1 << 28, 1000.0),
            disks: vec![
                row("a", "disk", 1 << 20, 9.0),
                row("b\u{1b}[2J", "disk", 1 << 21, 500.0),
                row("c", "base", 0, 0.0),
            ],
        }
    }

    fn drawn(view: &mut View, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        terminal.draw(|frame| view.draw(frame)).expect("memory");
        let buffer = terminal.backend().buffer();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..height).map(line).collect()
    }

    fn names(view: &mut View) -> Vec<char> {
        drawn(view, 160, 10)[4..7].iter().filter_map(|line| line.chars().next()).collect()
    }

    #[test]
    fn the_screen_has_the_server_its_disks_and_the_keys() {
        let mut view = View::new(Column::Requests, Duration::from_secs(2));
        view.show(shown());
        let lines = drawn(&mut view, 160, 10);
        assert!(
            lines[0].starts_with("pagefold 1.2.3, process 77, up 2 hours, codec fold: 3 disks, 4 connections"),
            "{lines:#?}"
        );
        assert!(lines[1].starts_with("stored 768 MiB in 256 MiB of 1 GiB (25 %), ratio 3.00"), "{lines:#?}");
        assert!(lines[2].starts_with("reads 1000/s, 3.91 MiB/s   writes 0/s, 0/s   errors 0/s"), "{lines:#?}");
        assert!(lines[3].starts_with("NAME") && lines[3].contains("REQ/s"), "{lines:#?}");
        assert!(lines[5].starts_with("a ") && lines[5].contains("9.0") && lines[5].contains("12.3 µs"), "{lines:#?}");
        assert!(lines[9].starts_with("q quit"), "{lines:#?}");
        assert!(!lines.concat().contains('\u{1b}'), "a name that moves the cursor");
    }

    #[test]
    fn keys_sort_scroll_and_end() {
        let mut view = View::new(Column::Requests, Duration::from_secs(2));
        view.show(shown());
        assert_eq!(names(&mut view), ['b', 'a', 'c']);
        let press = |view: &mut View, key| view.press(key, KeyModifiers::NONE);
        assert!(!press(&mut view, KeyCode::Char('r')));
        assert_eq!(names(&mut view), ['c', 'a', 'b']);
        press(&mut view, KeyCode::Char('r'));
        for _ in 0..6 {
            press(&mut view, KeyCode::Left);
        }
        assert_eq!(view.sort, Column::Name);
        assert_eq!(names(&mut view), ['a', 'b', 'c']);
        press(&mut view, KeyCode::Left);
        assert_eq!(view.sort, Column::Waiting);
        press(&mut view, KeyCode::Right);
        press(&mut view, KeyCode::Char(' '));
        assert!(view.is_paused());
        press(&mut view, KeyCode::End);
        // Two rows: the last disk is one of them.
        let lines = drawn(&mut view, 160, 7);
        assert!(lines[5].starts_with("c ") && lines[6].contains("PAUSED"), "{lines:#?}");
        assert!(press(&mut view, KeyCode::Char('q')) && press(&mut view, KeyCode::Esc));
        assert!(view.press(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert!(!press(&mut view, KeyCode::Char('c')));
    }

    #[test]
    fn any_size_of_a_terminal_is_drawn() {
        let mut view = View::new(Column::Name, Duration::from_secs(2));
        view.show(shown());
        for (width, height) in [(1, 1), (3, 2), (20, 4), (80, 24), (400, 3), (2, 60)] {
            drawn(&mut view, width, height);
        }
    }
}
