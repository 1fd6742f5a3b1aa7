//! `pagefold completions` and `pagefold man`: generated from the definition of the command line.

use std::{fs, io::Write, path::PathBuf};

use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;

use crate::{Args as Pagefold, output::output};

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
}

pub(crate) fn completions(args: &CompletionsArgs) -> anyhow::Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Pagefold::command(), "pagefold", &mut text);
    print(&text)
}

pub(crate) fn man(args: &ManArgs) -> anyhow::Result<()> {
    match &args.to {
        Some(folder) => {
            fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
            clap_mangen::generate_to(Pagefold::command(), folder)
                .with_context(|| format!("cannot write into {}", folder.display()))
        }
        None => {
            let mut text = Vec::new();
            clap_mangen::Man::new(Pagefold::command()).render(&mut text).context("cannot make the page")?;
            print(&text)
        }
    }
}

fn print(text: &[u8]) -> anyhow::Result<()> {
    let mut out = output();
    out.write_all(text)?;
    Ok(out.flush()?)
}
