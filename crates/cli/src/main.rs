//! `pagefold`: compressed storage in user space.
#![forbid(unsafe_code)]

mod advise;
mod attach;
mod background;
mod cat;
mod check;
mod codec;
mod compact;
mod destination;
mod doctor;
mod extract;
mod figure;
mod freeze;
mod generate;
mod image;
mod info;
mod log;
mod ls;
mod manage;
mod mount;
mod output;
mod pack;
mod peer;
mod places;
mod progress;
mod record;
#[cfg(feature = "remote")]
mod remote;
mod serve;
mod server_directory;
mod signals;
mod source;
mod stat;
mod storage;
mod top;

use std::{env, fmt, process::ExitCode};

use clap::{CommandFactory, Parser, Subcommand, error::ErrorKind};
use pagefold_size as size;

/// Compressed storage in user space
#[derive(Parser)]
#[command(
    name = "pagefold",
    version,
    propagate_version = true,
    max_term_width = 100,
    after_help = "Exit status of every command: 0 success; 1 failure, or 'check' found a problem; 2 invalid command \
line."
)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Serve(serve::Args),
    Disks(manage::list::Args),
    Uri(manage::uri::Args),
    Attach(attach::AttachArgs),
    Detach(attach::DetachArgs),
    Stat(stat::Args),
    Top(top::Args),
    Add(manage::add::Args),
    Fork(manage::fork::Args),
    Snapshot(manage::snapshot::Args),
    Rollback(manage::rollback::Args),
    Diff(manage::diff::Args),
    Drop(manage::drop::Args),
    Resize(manage::resize::Args),
    Rename(manage::rename::Args),
    Reset(manage::reset::Args),
    Limit(manage::limit::Args),
    Quota(manage::quota::Args),
    Compact(compact::Args),
    Stop(manage::stop::Args),
    Freeze(freeze::Args),
    Pack(pack::Args),
    #[cfg(feature = "remote")]
    Push(remote::push::Args),
    #[cfg(feature = "remote")]
    Index(remote::index::Args),
    #[cfg(feature = "remote")]
    Fetch(remote::fetch::Args),
    #[cfg(feature = "remote")]
    Cache(remote::cache::Args),
    Ls(ls::Args),
    Cat(cat::Args),
    Info(info::Args),
    Check(check::Args),
    Extract(extract::Args),
    Mount(mount::Args),
    Advise(advise::Args),
    Doctor(doctor::Args),
    Completions(generate::CompletionsArgs),
    Man(generate::ManArgs),
}

fn main() -> ExitCode {
    let (words, at_start) = match serve::config::expand(env::args_os().collect()) {
        Ok(expanded) => expanded,
        Err(error) if error.is::<Misuse>() => return refuse(&message(&error)),
        Err(error) => {
            tell(&message(&error));
            return ExitCode::FAILURE;
        }
    };
    let command = match Args::try_parse_from(words) {
        Ok(args) => args.command,
        Err(error) if !error.use_stderr() => {
            // A closed standard output is not an error here.
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        Err(error) if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            // The list of commands. A closed standard error is not an error here.
            let _ = error.print();
            return ExitCode::from(2);
        }
        Err(error) => {
            let is_ls = error.kind() == ErrorKind::MissingRequiredArgument
                && env::args().nth(1).is_some_and(|name| name == "ls");
            let hint = if is_ls { "; 'pagefold disks' lists the disks of a server" } else { "" };
            return refuse(&format!("{}{hint}", complaint(&error)));
        }
    };
    let done = |result: anyhow::Result<()>| result.map(|()| ExitCode::SUCCESS);
    let result = match command {
        Command::Serve(args) => serve::run(&args, &at_start),
        Command::Disks(args) => done(manage::list::run(&args)),
        Command::Uri(args) => done(manage::uri::run(&args)),
        Command::Attach(args) => done(attach::attach(&args)),
        Command::Detach(args) => done(attach::detach(&args)),
        Command::Stat(args) => done(stat::run(&args)),
        Command::Top(args) => done(top::run(&args)),
        Command::Add(args) => done(manage::add::run(&args)),
        Command::Fork(args) => done(manage::fork::run(&args)),
        Command::Snapshot(args) => done(manage::snapshot::run(&args)),
        Command::Rollback(args) => done(manage::rollback::run(&args)),
        Command::Diff(args) => done(manage::diff::run(&args)),
        Command::Drop(args) => done(manage::drop::run(&args)),
        Command::Resize(args) => done(manage::resize::run(&args)),
        Command::Rename(args) => done(manage::rename::run(&args)),
        Command::Reset(args) => done(manage::reset::run(&args)),
        Command::Limit(args) => done(manage::limit::run(&args)),
        Command::Quota(args) => done(manage::quota::run(&args)),
        Command::Compact(args) => done(compact::run(&args)),
        Command::Stop(args) => done(manage::stop::run(&args)),
        Command::Freeze(args) => done(freeze::run(&args)),
        Command::Pack(args) => done(pack::run(&args)),
        #[cfg(feature = "remote")]
        Command::Push(args) => done(remote::push::run(&args)),
        #[cfg(feature = "remote")]
        Command::Index(args) => done(remote::index::run(&args)),
        #[cfg(feature = "remote")]
        Command::Fetch(args) => done(remote::fetch::run(&args)),
        #[cfg(feature = "remote")]
        Command::Cache(args) => done(remote::cache::run(&args)),
        Command::Ls(args) => done(ls::run(&args)),
        Command::Cat(args) => done(cat::run(&args)),
        Command::Info(args) => done(info::run(&args)),
        Command::Check(args) => done(check::run(&args)),
        Command::Extract(args) => done(extract::run(&args)),
        Command::Mount(args) => mount::run(&args),
        Command::Advise(args) => done(advise::run(&args)),
        Command::Doctor(args) => doctor::run(&args),
        Command::Completions(args) => done(generate::completions(&args)),
        Command::Man(args) => done(generate::man(&args)),
    };
    match result {
        Ok(code) => code,
        Err(error) if output::is_closed(&error) => ExitCode::SUCCESS,
        Err(error) if error.is::<Misuse>() => refuse(&message(&error)),
        Err(error) => {
            tell(&message(&error));
            ExitCode::FAILURE
        }
    }
}

/// Reports an invalid command line and refers to the help.
fn refuse(what: &str) -> ExitCode {
    let name = env::args().nth(1).filter(|name| Args::command().find_subcommand(name).is_some());
    let name = name.map_or_else(String::new, |name| format!(" {name}"));
    tell(what);
    tell(&format!("see 'pagefold{name} --help'"));
    ExitCode::from(2)
}

/// Returns clap's error in one line, without the hints that clap appends to every error.
fn complaint(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let end = ["\nUsage:", "\nFor more information"].iter().filter_map(|mark| text.find(mark)).min();
    let text = &text[..end.unwrap_or(text.len())];
    let lines = text.strip_prefix("error: ").unwrap_or(text).lines().map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join(" ")
}

/// An impossible request on the command line. The exit status is the one that clap uses for an
/// invalid command line.
#[derive(Debug)]
struct Misuse(String);

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Misuse {}

/// Marks an error as caused by the command line.
fn misuse(error: impl Into<anyhow::Error>) -> anyhow::Error {
    Misuse(message(&error.into())).into()
}

/// Formats an error with its causes, omitting each cause that the text already ends with.
fn message(error: &anyhow::Error) -> String {
    let mut message = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if message.is_empty() {
            message = cause;
        } else if !message.ends_with(&cause) {
            message = format!("{message}: {cause}");
        }
    }
    message
}

/// Writes a line to standard error.
fn tell(text: &str) {
    log::write(log::Level::Error, text);
}

#[cfg(test)]
mod tests {
    use anyhow::{Context, anyhow};

    use super::*;

    #[test]
    fn options_of_each_command_have_names_of_their_own() {
        Args::command().debug_assert();
    }

    #[test]
    fn causes_are_shown_once() {
        let error = Err::<(), _>(anyhow!("no such file")).context("opening a: no such file").context("a").unwrap_err();
        assert_eq!(message(&error), "a: opening a: no such file");
        let error = Err::<(), _>(anyhow!("b")).context("a").unwrap_err();
        assert_eq!(message(&error), "a: b");
    }
}
