//! The examples in the documentation work.

use std::{fs, path::Path, process::Command};

use pagefold_testing::programs;

use crate::server::{Server, run};

fn page(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name)).expect("a page")
}

/// Returns the code blocks of a page in this language.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let start = format!("```{language}\n");
    page.split(start.as_str()).skip(1).map(|rest| rest.split("\n```").next().unwrap_or_default()).collect()
}

/// Each `$ COMMAND` in docs/control.md, run one after another in one shell, prints the text below
/// it.
#[test]
fn the_examples_of_the_control_socket_work() {
    let test = "the_examples_of_the_control_socket_work";
    let Some(_) = programs(test, ["socat", "jq"]) else { return };
    let server = Server::start(&[]);
    let page = page("control.md");
    let (mut script, mut expected) = (String::new(), String::new());
    for line in blocks(&page, "console").join("\n").lines() {
        let (text, line) = match line.strip_prefix("$ ") {
            Some(command) => (&mut script, command),
            None => (&mut expected, line),
        };
        *text += line;
        text.push('\n');
    }
    assert!(expected.lines().count() >= 7, "{expected}");
    let said = run(Command::new("sh").args(["-ec", &script]).env("control", server.control()));
    assert_eq!(said, expected);
}

/// The page lists every command and every error of the program.
#[test]
fn the_page_has_all_commands_and_errors() {
    let page = page("control.md");
    let command = include_str!("../../../control/src/command.rs");
    let failure = include_str!("../../../control/src/failure.rs");
    let kebab = |name: &str| {
        let lower =
            |letter: char| if letter.is_uppercase() { format!("-{}", letter.to_lowercase()) } else { letter.into() };
        name.chars().map(lower).collect::<String>().trim_start_matches('-').to_owned()
    };
    let variants = |text: &str, name: &str| -> Vec<String> {
        let body = text.split(&format!("pub enum {name} {{\n")).nth(1).expect("an enum").split("\n}").next();
        let lines = body.expect("an end").lines().filter_map(|line| line.strip_prefix("    "));
        let names = lines.filter(|line| line.starts_with(|letter: char| letter.is_ascii_uppercase()));
        names.map(|line| kebab(line.split([' ', ',', '(']).next().unwrap_or_default())).collect()
    };
    let (commands, codes) = (variants(command, "Command"), variants(failure, "Code"));
    assert!(commands.len() > 12 && codes.len() > 12, "{commands:?} {codes:?}");
    for name in commands.iter().chain(codes.iter().filter(|code| *code != "other")) {
        assert!(page.contains(&format!("`{name}`")), "{name}");
    }
}

/// The page lists every figure.
#[test]
fn the_page_has_all_figures() {
    let (server, page) = (Server::start(&["--size", "1M"]), page("control.md"));
    let text = run(&mut server.ask(&["stat", "--json"]));
    for line in text.lines() {
        let figure: serde_json::Value = serde_json::from_str(line).expect("JSON");
        let metric = figure["metric"].as_str().expect("a metric");
        assert!(page.contains(&format!("`{metric}`")), "{metric}");
    }
}
