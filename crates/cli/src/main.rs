//! `pagefold`: compressed storage in user space.
#![forbid(unsafe_code)]

mod cat;
mod check;
mod compact;
mod destination;
mod extract;
mod figure;
mod generate;
mod image;
mod info;
mod ls;
mod mount;
mod output;
mod pack;
mod peer;
mod progress;
mod record;
mod serve;
mod signals;
mod size;
mod source;
mod stat;

use std::{
    fmt,
    io::{self, Write},
    process::ExitCode,
};

use clap::{Parser, Subcommand};

/// Compressed storage in user space
#[derive(Parser)]
#[command(
    name = "pagefold",
    version,
    propagate_version = true,
    max_term_width = 100,
    after_help = "Exit status, of every command: 0 done; 1 failed, or 'check' found something wrong; 2 the command line is wrong."
)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Serve(serve::Args),
    Stat(stat::Args),
    Compact(compact::Args),
    Pack(pack::Args),
    Ls(ls::Args),
    Cat(cat::Args),
    Info(info::Args),
    Check(check::Args),
    Extract(extract::Args),
    Mount(mount::Args),
    Completions(generate::CompletionsArgs),
    Man(generate::ManArgs),
}

fn main() -> ExitCode {
    let result = match Args::parse().command {
        Command::Serve(args) => serve::run(&args),
        Command::Stat(args) => stat::run(&args),
        Command::Compact(args) => compact::run(&args),
        Command::Pack(args) => pack::run(&args),
        Command::Ls(args) => ls::run(&args),
        Command::Cat(args) => cat::run(&args),
        Command::Info(args) => info::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Extract(args) => extract::run(&args),
        Command::Mount(args) => mount::run(&args),
        Command::Completions(args) => generate::completions(&args),
        Command::Man(args) => generate::man(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if output::is_closed(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // Names may have control characters.
            tell(&image::show(message(&error).as_bytes()));
            if error.is::<Misuse>() { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

/// A command line that asks for something impossible. The program ends as clap ends it for what is not understood.
#[derive(Debug)]
struct Misuse(String);

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Misuse {}

/// Says of an error that the command line is its cause.
fn misuse(error: impl Into<anyhow::Error>) -> anyhow::Error {
    Misuse(message(&error.into())).into()
}

/// An error and its causes, each unless what led to it has said it.
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

/// Writes a line to standard error; that it cannot be written is no reason to fail.
fn tell(text: &str) {
    let _ = writeln!(io::stderr(), "pagefold: {text}");
}

#[cfg(test)]
mod tests {
    use anyhow::{Context, anyhow};

    use super::*;

    #[test]
    fn causes_are_told_once() {
        let error = Err::<(), _>(anyhow!("no such file")).context("opening a: no such file").context("a").unwrap_err();
        assert_eq!(message(&error), "a: opening a: no such file");
        let error = Err::<(), _>(anyhow!("b")).context("a").unwrap_err();
        assert_eq!(message(&error), "a: b");
    }
}
