//! `pagefold`: compressed storage in user space.
#![forbid(unsafe_code)]

mod cat;
mod check;
mod compact;
mod extract;
mod generate;
mod image;
mod info;
mod ls;
mod mount;
mod pack;
mod peer;
mod progress;
mod serve;
mod size;
mod stat;

use std::{
    io::{self, ErrorKind, Write},
    process::ExitCode,
};

use clap::{Parser, Subcommand};

/// Compressed storage in user space
#[derive(Parser)]
#[command(name = "pagefold", version, propagate_version = true, max_term_width = 100)]
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
        // Whoever reads our output has had enough of it.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            tell(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Writes a line to standard error; that it cannot be written is no reason to fail.
fn tell(text: &str) {
    let _ = writeln!(io::stderr(), "pagefold: {text}");
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>()).any(|io| io.kind() == ErrorKind::BrokenPipe)
}
