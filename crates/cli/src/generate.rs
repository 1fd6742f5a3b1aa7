//! `pagefold completions` and `pagefold man`: generated from the definition of the command line.

use std::{fs, io::Write, path::PathBuf};

use anyhow::Context;
use clap_complete::Shell;
use clap_mangen::Man;
use pagefold_output::{Inputs, NewFile, Written};

use crate::{destination::remove_on_signals, output::output};

/// Print shell completions
#[derive(clap::Args)]
#[command(after_help = "Example:
  pagefold completions bash > ~/.local/share/bash-completion/completions/pagefold")]
pub(crate) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// Print the manual page, or write the pages of all commands
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pagefold man | man -l -
  pagefold man --to ~/.local/share/man/man1")]
pub(crate) struct ManArgs {
    /// Write pagefold.1, pagefold-serve.1 and so on into this folder
    #[arg(long, value_name = "FOLDER")]
    to: Option<PathBuf>,

    /// Replace files in FOLDER that are not manual pages of pagefold
    #[arg(long, requires = "to")]
    force: bool,
}

pub(crate) fn completions(args: &CompletionsArgs, mut pagefold: clap::Command) -> anyhow::Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut pagefold, "pagefold", &mut text);
    print(&text)
}

pub(crate) fn man(args: &ManArgs, pagefold: clap::Command) -> anyhow::Result<()> {
    match &args.to {
        Some(folder) => {
            fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
            let mut command = pagefold.disable_help_subcommand(true);
            command.build();
            let mut commands: Vec<_> =
                command.get_subcommands().filter(|found| !found.is_hide_set()).cloned().collect();
            commands.push(command);
            let place = |command: &clap::Command| {
                let path = folder.join(Man::new(command.clone()).get_filename());
                NewFile::at(&path, Written::ManualPage, args.force, &Inputs::default())
            };
            // All files are checked before the first is replaced.
            let places = commands.iter().map(place).collect::<pagefold_output::Result<Vec<_>>>()?;
            for (command, place) in commands.into_iter().zip(places) {
                let draft = place.make_guarded_draft(&remove_on_signals)?;
                draft
                    .file()
                    .write_all(&page(command)?)
                    .with_context(|| format!("writing {}", place.path().display()))?;
                place.take(draft)?;
            }
            Ok(())
        }
        None => print(&page(pagefold)?),
    }
}

fn page(command: clap::Command) -> anyhow::Result<Vec<u8>> {
    let mut text = Vec::new();
    Man::new(command).render(&mut text).context("cannot make the page")?;
    Ok(text)
}

fn print(text: &[u8]) -> anyhow::Result<()> {
    let mut out = output();
    out.write_all(text)?;
    Ok(out.flush()?)
}
