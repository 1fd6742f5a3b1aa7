//! `pagefold`: compressed storage in user space.
#![forbid(unsafe_code)]

mod generate;
mod serve;
mod size;
mod stat;

use std::process::ExitCode;

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
    Completions(generate::CompletionsArgs),
    Man(generate::ManArgs),
}

fn main() -> ExitCode {
    let result = match Args::parse().command {
        Command::Serve(args) => serve::run(&args),
        Command::Stat(args) => stat::run(&args),
        Command::Completions(args) => generate::completions(&args),
        Command::Man(args) => generate::man(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pagefold: {error:#}");
            ExitCode::FAILURE
        }
    }
}
