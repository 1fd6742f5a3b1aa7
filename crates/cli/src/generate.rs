//! `pagefold completions` and `pagefold man`: generated from the definition of the command line.

use std::{fs, io::Write, path::PathBuf};

use anyhow::Context;
use clap::builder::{PossibleValuesParser, StyledStr};
use clap_complete::Shell;
use clap_mangen::Man;
use pagefold_codec::NAMES;
use pagefold_output::{Inputs, NewFile, Written};

use crate::{codec, destination::remove_on_signals, output::output};

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

pub(crate) fn completions(args: &CompletionsArgs, pagefold: &clap::Command) -> anyhow::Result<()> {
    print(&script(args.shell, pagefold))
}

fn script(shell: Shell, pagefold: &clap::Command) -> Vec<u8> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut without_hidden(pagefold), "pagefold", &mut text);
    text
}

/// Returns what completions need of a command. `clap_complete` ignores that an option is hidden.
fn without_hidden(command: &clap::Command) -> clap::Command {
    let owned = |name: &str| name.to_owned();
    clap::Command::new(owned(command.get_name()))
        .about(command.get_about().cloned().unwrap_or_default())
        .version(owned(command.get_version().unwrap_or_default()))
        .visible_aliases(command.get_visible_aliases().map(owned))
        .args(command.get_arguments().filter(|arg| !arg.is_hide_set()).cloned().map(|arg| with_codecs(command, arg)))
        .subcommands(command.get_subcommands().filter(|found| !found.is_hide_set()).map(without_hidden))
        .propagate_version(true)
}

/// Returns an argument with the names of codecs as values if it takes one. Levels may follow.
fn with_codecs(command: &clap::Command, arg: clap::Arg) -> clap::Arg {
    match (command.get_name(), arg.get_id().as_str()) {
        ("pack", "codec") => arg.value_parser(PossibleValuesParser::new(codec::cluster_families())),
        ("serve", "codec") => arg.value_parser(PossibleValuesParser::new(NAMES)),
        _ => arg,
    }
}

/// Returns the definition with each command's and option's other names where the help has them.
/// clap shows the names of commands only in their list, and `clap_mangen` ignores both.
pub(crate) fn with_names(pagefold: clap::Command) -> clap::Command {
    pagefold.mut_subcommands(|command| {
        let names: Vec<_> = command.get_visible_aliases().collect();
        if names.is_empty() {
            return command;
        }
        let first = format!("Other names: {}", names.join(", "));
        let text = command.get_after_help().map_or_else(|| first.clone(), |rest| format!("{first}\n\n{rest}"));
        command.after_help(text)
    })
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
    let named = |text: Option<&StyledStr>, names: &[&str]| match (text, names) {
        (text, []) => text.cloned().unwrap_or_default(),
        (None, names) => format!("[other names: {}]", names.join(", ")).into(),
        (Some(text), names) => format!("{text} [other names: {}]", names.join(", ")).into(),
    };
    let command = command
        .mut_subcommands(|command| {
            let about = named(command.get_about(), &command.get_visible_aliases().collect::<Vec<_>>());
            command.about(about)
        })
        .mut_args(|arg| {
            let names = arg.get_visible_aliases().unwrap_or_default();
            let names: Vec<_> = names.iter().map(|name| format!("--{name}")).collect();
            let help = named(arg.get_help(), &names.iter().map(|name| &**name).collect::<Vec<_>>());
            arg.help(help)
        });
    let mut text = Vec::new();
    Man::new(command).render(&mut text).context("cannot make the page")?;
    let text = String::from_utf8(text).context("cannot make the page")?;
    // The texts below the options: examples and explanations.
    Ok(text.replace("\n.SH EXTRA\n", "\n.SH NOTES\n").into_bytes())
}

fn print(text: &[u8]) -> anyhow::Result<()> {
    let mut out = output();
    out.write_all(text)?;
    Ok(out.flush()?)
}

#[cfg(test)]
pub(crate) mod tests {
    use clap::ValueEnum;

    use super::*;

    /// Completions have no option that the help hides; help and pages have all names.
    pub(crate) fn generated_texts_agree_with(pagefold: &clap::Command) {
        let commands = || pagefold.get_subcommands().chain([pagefold]);
        let hidden: Vec<_> = commands()
            .flat_map(|command| command.get_arguments().filter(|arg| arg.is_hide_set()))
            .filter_map(|arg| arg.get_long())
            .collect();
        assert!(!hidden.is_empty());
        for shell in Shell::value_variants() {
            let text = String::from_utf8(script(*shell, pagefold)).expect("text");
            for name in &hidden {
                let has = text
                    .split(|letter: char| !letter.is_alphanumeric() && letter != '-')
                    .any(|word| word.trim_start_matches('-') == *name);
                assert!(!has, "{shell}: {name}");
            }
            assert!(text.contains("memory-limit"), "{shell}");
            assert!(["lz4hc", "deflate", "pleat"].iter().all(|codec| text.contains(codec)), "{shell}");
        }
        let text = |command: &clap::Command| {
            let text = String::from_utf8(page(command.clone()).expect("a page")).expect("text");
            text.replace("\\-", "-")
        };
        for command in commands() {
            let (page, help) = (text(command), command.clone().render_long_help().to_string());
            assert!(!page.contains("EXTRA"), "{}", command.get_name());
            let aliases = command.get_visible_aliases().map(str::to_owned);
            let options = command.get_arguments().filter_map(clap::Arg::get_visible_aliases).flatten();
            for name in aliases.chain(options.map(|name| format!("--{name}"))) {
                let has = |text: &str| text.split([' ', ',', ']', '\n']).any(|word| word == name);
                assert!(has(&page) && has(&help), "{}: {name}", command.get_name());
            }
            let all = command.get_visible_aliases().collect::<Vec<_>>().join(", ");
            assert!(text(pagefold).contains(&all), "{all}");
        }
    }
}
