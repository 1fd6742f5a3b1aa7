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
mod report;
mod serve;
mod server_directory;
mod signals;
mod source;
mod stat;
mod storage;
mod text;
mod top;

use std::{
    any::TypeId,
    env,
    ffi::OsString,
    io::{self, IsTerminal, Write},
    path::PathBuf,
    process::ExitCode,
};

use clap::{
    CommandFactory, FromArgMatches, Parser, Subcommand,
    error::{ContextKind, ContextValue, ErrorKind},
};
use pagefold_size as size;
use report::{Misuse, complaint, print};
use text::message;

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

/// Returns the definition of the command line.
fn definition() -> clap::Command {
    generate::with_names(Args::command()).mut_subcommands(|command| command.mut_args(with_any_value))
}

/// Lets an option take a value that begins with `-`, such as -1, for its parser to refuse: it says what
/// is expected. Texts and paths that begin so are more likely another option.
fn with_any_value(arg: clap::Arg) -> clap::Arg {
    let of = arg.get_value_parser().type_id();
    let is_text = of == TypeId::of::<String>() || of == TypeId::of::<OsString>() || of == TypeId::of::<PathBuf>();
    let may_lack_it = arg.get_num_args().is_some_and(|number| number.min_values() == 0);
    let is_parsed = !arg.is_positional() && arg.get_action().takes_values() && !is_text && !may_lack_it;
    if is_parsed { arg.allow_hyphen_values(true) } else { arg }
}

fn main() -> ExitCode {
    if let Err(error) = signals::survive_large_writes() {
        print(&format!("cannot catch signals: {error}"));
        return ExitCode::FAILURE;
    }
    let (words, at_start) = match serve::config::expand(env::args_os().collect()) {
        Ok(expanded) => expanded,
        Err(error) if error.is::<Misuse>() => return refuse(&message(&error)),
        Err(error) => {
            print(&message(&error));
            return ExitCode::FAILURE;
        }
    };
    let parsed = definition().try_get_matches_from(words).and_then(|found| Args::from_arg_matches(&found));
    let command = match parsed {
        Ok(args) => args.command,
        Err(error) if !error.use_stderr() => return exit_code(show_text(&error).map(|()| ExitCode::SUCCESS)),
        Err(error) if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            // The list of commands. A closed standard error is not an error here.
            let _ = error.print();
            return ExitCode::from(2);
        }
        Err(error) => {
            let about_servers = match error.get(ContextKind::InvalidArg) {
                Some(ContextValue::String(name)) if error.kind() == ErrorKind::UnknownArgument => {
                    ["--dir", "--control"].contains(&name.as_str())
                }
                _ => error.kind() == ErrorKind::MissingRequiredArgument,
            };
            let is_ls = about_servers && env::args_os().nth(1).is_some_and(|name| name == "ls");
            let hint = if is_ls { "; 'pagefold disks' lists the disks of a server" } else { "" };
            return refuse(&format!("{}{hint}", complaint(&error)));
        }
    };
    let done = |result: anyhow::Result<()>| result.map(|()| ExitCode::SUCCESS);
    let has_an_effect = command.has_an_effect();
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
        Command::Completions(args) => done(generate::completions(&args, &definition())),
        Command::Man(args) => done(generate::man(&args, definition())),
    };
    exit_code(result.map_err(|error| match has_an_effect && output::is_lost(&error) {
        true => error.context("the command was carried out, but its result is lost"),
        false => error,
    }))
}

impl Command {
    /// Returns whether the command changes a server before it prints its result.
    fn has_an_effect(&self) -> bool {
        matches!(
            self,
            Self::Attach(_)
                | Self::Detach(_)
                | Self::Add(_)
                | Self::Fork(_)
                | Self::Snapshot(_)
                | Self::Rollback(_)
                | Self::Drop(_)
                | Self::Resize(_)
                | Self::Rename(_)
                | Self::Reset(_)
                | Self::Limit(_)
                | Self::Quota(_)
                | Self::Compact(_)
                | Self::Stop(_)
        )
    }
}

/// Prints the help or the version.
fn show_text(text: &clap::Error) -> anyhow::Result<()> {
    if io::stdout().is_terminal() {
        // In colors.
        return Ok(text.print()?);
    }
    let mut out = output::output();
    write!(out, "{}", text.render())?;
    Ok(out.flush()?)
}

/// Reports a failure, and returns the exit status of the program.
fn exit_code(result: anyhow::Result<ExitCode>) -> ExitCode {
    match result {
        Ok(code) => code,
        Err(error) if output::is_closed(&error) => ExitCode::SUCCESS,
        Err(error) if error.is::<Misuse>() => refuse(&message(&error)),
        Err(error) => {
            print(&message(&error));
            ExitCode::FAILURE
        }
    }
}

/// Reports an invalid command line and refers to the help.
fn refuse(what: &str) -> ExitCode {
    let name = env::args().nth(1).filter(|name| Args::command().find_subcommand(name).is_some());
    let name = name.map_or_else(String::new, |name| format!(" {name}"));
    print(what);
    print(&format!("see 'pagefold{name} --help'"));
    ExitCode::from(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_each_command_have_names_of_their_own() {
        definition().debug_assert();
    }

    #[test]
    fn completions_help_and_pages_have_the_names_that_users_may_type() {
        generate::tests::generated_texts_agree_with(&definition());
    }
}
