//! The page of a run: verdicts, the sources' tables, what is missing, raw figures and commands.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

use super::{
    baseline::{Change, Changes, changes},
    chart,
    comparisons::{GROUPS, Group},
    html::{self, HtmlTable, escape},
    published::{self, Values, means, tables},
    record::{Key, Record, Series, Spread},
    run::minutes,
    verdict::{Comparison, Measure, Verdict, Winner, verdicts, without_figures},
    words::{between, difference, figure, grouped, plural, range, times, utc},
};

/// An earlier run that this one is compared with.
pub(super) struct Baseline {
    pub(super) name: String,
    pub(super) record: Record,
}

/// Returns the whole page. `lines` is the name of the file with the figures.
pub(super) fn page(record: &Record, lines: &str, baseline: Option<&Baseline>) -> String {
    let verdicts = verdicts(record);
    let mut body = String::new();
    body.push_str(&head(record, lines));
    body.push_str(&contents(&verdicts, baseline.is_some()));
    body.push_str(&section_verdicts(&verdicts));
    if let Some(baseline) = baseline {
        body.push_str(&section_baseline(&baseline.name, &changes(&baseline.record, record)));
    }
    body.push_str(&section_published(record));
    body.push_str(&section_missing(record));
    body.push_str(&section_raw(record));
    html::page("pagefold, measured", &body)
}

fn head(record: &Record, lines: &str) -> String {
    let mut text = "<h1>pagefold, measured</h1>\n".to_owned();
    let _ = write!(text, "<p>{}", escape(&record.machine));
    if let Some(began_s) = record.began_s {
        let _ = write!(text, "; begun {}", utc(began_s));
    }
    let seconds: f64 = record.turns.iter().filter_map(|turn| turn.seconds).sum();
    let turns = record.turns.iter().map(|turn| turn.number).max().unwrap_or(0);
    let _ = writeln!(text, "; {turns} {}, {} of measuring.</p>", plural(turns as usize, "turn"), minutes(seconds));
    let _ = writeln!(
        text,
        "<p class=\"quiet\">Every peer was measured in the same run, in turns with pagefold. The method, and what differs \
         between pagefold and each peer, is in docs/report.md. The figures are in <code>{}</code>, one JSON object a \
         line.</p>",
        escape(lines)
    );
    if let Some(why) = &record.cut_short {
        let _ = writeln!(
            text,
            "<p class=\"warn\">This run was cut short: {}. What it had measured stands here.</p>",
            escape(why)
        );
    }
    text.push_str(&not_measured(record));
    text
}

/// Returns a line that names the parts without any figures, if there are any.
fn not_measured(record: &Record) -> String {
    let ended = |part: &str| record.turns.iter().any(|turn| turn.part == part && turn.failure.is_none());
    let failed = record.turns.iter().filter(|turn| turn.failure.is_some()).map(|turn| &turn.part);
    let without: BTreeSet<&String> =
        record.left_out.iter().map(|(part, _)| part).chain(failed).filter(|part| !ended(part)).collect();
    if without.is_empty() {
        return String::new();
    }
    let names: Vec<_> = without.iter().map(|part| format!("<b>{}</b>", escape(part))).collect();
    format!(
        "<p class=\"warn\">Not measured: {}. The verdicts below do not count {}. <a href=\"#missing\">Why</a></p>\n",
        names.join(", "),
        if names.len() == 1 { "it" } else { "them" }
    )
}

/// Returns the list of contents.
fn contents(verdicts: &[Verdict], has_baseline: bool) -> String {
    let groups = GROUPS.iter().filter(|group| has_rows(verdicts, group));
    let groups = groups.map(|group| format!("<li><a href=\"#{}\">{}</a></li>", anchor(group.name), escape(group.name)));
    let groups: String = groups.collect();
    let mut text = "<nav><ul class=\"contents\"><li><a href=\"#verdicts\">Verdicts</a>".to_owned();
    if !groups.is_empty() {
        let _ = write!(text, "<ul>{groups}</ul>");
    }
    text.push_str("</li>");
    let baseline = has_baseline.then_some(("baseline", "Compared with an earlier run"));
    let others =
        [("sources", "The sources' tables"), ("missing", "What was not measured"), ("raw", "Commands and raw figures")];
    for (anchor, heading) in baseline.into_iter().chain(others) {
        let _ = write!(text, "<li><a href=\"#{anchor}\">{}</a></li>", escape(heading));
    }
    text + "</ul></nav>\n"
}

fn has_rows(verdicts: &[Verdict], group: &Group) -> bool {
    verdicts.iter().any(|verdict| verdict.comparison.group == group.name)
}

/// Returns the anchor of a heading.
fn anchor(heading: &str) -> String {
    heading.to_lowercase().replace(' ', "-")
}

fn section_verdicts(verdicts: &[Verdict]) -> String {
    let mut text = "<h2 id=\"verdicts\">Verdicts</h2>\n".to_owned();
    if verdicts.is_empty() {
        text.push_str("<p>No comparison has figures of both sides yet.</p>\n");
        return text;
    }
    let count = |winner| verdicts.iter().filter(|verdict| verdict.winner() == winner).count();
    let _ = writeln!(
        text,
        "<ul class=\"tally\"><li class=\"ours\"><b>{}</b> pagefold is better</li><li class=\"even\"><b>{}</b> no \
         difference</li><li class=\"peer\"><b>{}</b> the peer is better</li></ul>",
        count(Winner::Pagefold),
        count(Winner::Neither),
        count(Winner::Peer)
    );
    text.push_str(
        "<p class=\"quiet\">A dot says how many times better pagefold is, the geometric mean over the cases: its speed over \
         the peer's, or the peer's time or bytes over pagefold's. The bar behind it, and the column ‘turns’, go from the \
         lowest turn to the highest. ‘Cases’ goes from the worst case to the best. An arrow stands for more than 8 times. \
         There is no difference where turns lie on both sides of 1, or within 1 % of it; of a \
         single turn, within 5 %.</p>\n",
    );
    for group in GROUPS {
        let of_group: Vec<&Verdict> =
            verdicts.iter().filter(|verdict| verdict.comparison.group == group.name).collect();
        if of_group.is_empty() {
            continue;
        }
        let (anchor, name, note) = (anchor(group.name), escape(group.name), escape(group.note));
        let _ = writeln!(text, "<h3 id=\"{anchor}\">{name}</h3>\n<p class=\"note\">{note}</p>");
        let _ = writeln!(
            text,
            "<table class=\"verdicts\"><thead><tr><th class=\"what\" scope=\"col\">pagefold and peer</th><th class=\"dot\" \
             scope=\"col\"><span class=\"sides\"><span>◀ peer better</span><span>pagefold better ▶</span></span>{}</th>\
             <th class=\"said\" scope=\"col\">pagefold</th><th class=\"turns\" scope=\"col\">turns</th><th class=\"cases\" \
             scope=\"col\">cases</th></tr></thead><tbody>",
            chart::axis()
        );
        of_group.iter().for_each(|verdict| text.push_str(&verdict_row(verdict)));
        text.push_str("</tbody></table>\n");
    }
    text
}

fn verdict_row(verdict: &Verdict) -> String {
    let Verdict { comparison, ratio, cases, worst, best } = verdict;
    let class = match verdict.winner() {
        Winner::Pagefold => "ours",
        Winner::Peer => "peer",
        Winner::Neither => "even",
    };
    let of_cases = match cases {
        0 | 1 => String::new(),
        cases => format!("{cases} cases {}", between(worst.ratio, best.ratio)),
    };
    format!(
        "<tr class=\"{class}\"><th class=\"what\" scope=\"row\">{}<small>{} / {}</small></th><td class=\"dot\">{}</td><td \
         class=\"said\">{}</td><td class=\"turns\">{}</td><td class=\"cases\" title=\"worst: {}; best: {}\">{of_cases}</td></tr>\n",
        escape(comparison.what),
        escape(comparison.ours_name),
        escape(comparison.peer_name),
        chart::strip(*ratio, verdict.winner()),
        escape(&difference(comparison.measure, ratio.median)),
        range(*ratio),
        escape(&worst.case),
        escape(&best.case),
    )
}

fn section_baseline(name: &str, changes: &Changes) -> String {
    let mut text = format!("<h2 id=\"baseline\">Compared with {}</h2>\n", escape(name));
    let _ = writeln!(
        text,
        "<p>Of {} comparisons with peers {} fell and {} rose by more than their spread. Of {} figures of pagefold by itself {} \
         fell and {} rose.</p>",
        changes.ratios,
        changes.ratios_fell.len(),
        changes.ratios_rose.len(),
        changes.figures,
        changes.fell.len(),
        changes.rose
    );
    if let Some(factor) = changes.peers_factor {
        let _ = writeln!(
            text,
            "<p class=\"quiet\">Peers' speeds and times are {} in the median: that is the machine, and comparisons with \
             peers do not have it.</p>",
            escape(&difference(Measure::Speed, factor))
        );
    }
    for (heading, ratios) in
        [("Comparisons that fell", &changes.ratios_fell), ("Comparisons that rose", &changes.ratios_rose)]
    {
        if ratios.is_empty() {
            continue;
        }
        let _ = writeln!(text, "<h3>{heading}</h3>");
        let mut table = HtmlTable::new("numbers", "", &["comparison", "before", "now", "changed to"]);
        for Change { of, before, after, factor } in ratios {
            table.row(&comparison_name(of), [range(*before), range(*after), times(*factor)]);
        }
        text.push_str(&table.end());
    }
    if !changes.fell.is_empty() {
        text.push_str("<h3>Figures that fell</h3>\n");
        let mut table = HtmlTable::new("numbers", "", &["figure", "before", "now", "unit", "times better"]);
        for Change { of: (key, unit), before, after, factor } in &changes.fell {
            let name = format!("{} {} {} {}", key.bench, key.case, key.subject, key.metric);
            table.row(&name, [values(*before), values(*after), unit.clone(), times(*factor)]);
        }
        text.push_str(&table.end());
    }
    text
}

fn comparison_name(comparison: &Comparison) -> String {
    let Comparison { group, what, ours_name, peer_name, .. } = comparison;
    format!("{group}: {what}, {ours_name} / {peer_name}")
}

/// Formats a figure's median with the range of its turns.
fn values(spread: Spread) -> String {
    if spread.turns < 2 {
        return figure(spread.median);
    }
    format!("{} ({} – {})", figure(spread.median), figure(spread.low), figure(spread.high))
}

fn section_published(record: &Record) -> String {
    let mut text = "<h2 id=\"sources\">The sources' tables, as published and as measured here</h2>\n".to_owned();
    text.push_str(
        "<p class=\"quiet\">pagefold is built on five pieces of published work. Machines differ, so compare rows and columns of \
         one side with each other, not a figure with its neighbour.</p>\n",
    );
    for table in tables() {
        let measured = table.measured_values(record);
        let _ = writeln!(
            text,
            "<h3>{}</h3>\n<p class=\"note\">{}. <b>There:</b> {} <b>Here:</b> {}</p>",
            escape(table.title),
            escape(table.source),
            escape(table.there),
            escape(table.here)
        );
        let published = table.published_values();
        let has_groups = table.rows.iter().any(|row| !row.group.is_empty());
        // Two wide tables do not fit side by side.
        let class = if table.published.len() > 4 { "pair wide" } else { "pair" };
        let pair = |rows: &dyn Fn(&[&str], &Values, &str) -> String| {
            format!(
                "<div class=\"{class}\">{}{}</div>\n",
                rows(table.published, &published, &format!("Published, {}", table.unit)),
                rows(table.measured, &measured, &format!("Measured here, {}", table.unit))
            )
        };
        if has_groups {
            text.push_str(&pair(&|columns, values, caption| group_means(&table, columns, values, caption)));
            let whole = pair(&|columns, values, caption| all_rows(&table, columns, values, caption));
            let _ = writeln!(text, "<details><summary>All {} rows</summary>{whole}</details>", table.rows.len());
        } else {
            text.push_str(&pair(&|columns, values, caption| all_rows(&table, columns, values, caption)));
        }
    }
    text
}

/// Whether a side has any figure.
fn is_measured(values: &Values) -> bool {
    values.iter().flatten().any(Option::is_some)
}

const NOT_MEASURED: &str = "not measured in this run";

fn all_rows(table: &published::PublishedTable, columns: &[&str], values: &Values, caption: &str) -> String {
    if !is_measured(values) {
        return format!("<p class=\"quiet\">{}: {NOT_MEASURED}.</p>", escape(caption));
    }
    let mut out = HtmlTable::new("numbers", caption, &[&[""], columns].concat());
    let mut group = "";
    for (row, values) in table.rows.iter().zip(values) {
        // Rows without a published figure are left out of the published side.
        if values.iter().all(Option::is_none) && caption.starts_with("Published") {
            continue;
        }
        if row.group != group {
            group = &row.group;
            out.row_of("group", group, columns.iter().map(|_| ""));
        }
        out.row(&row.name, values.iter().map(|value| shown(*value, table.decimals)));
    }
    if table.has_means {
        let rows: Vec<&[Option<f64>]> = values.iter().map(Vec::as_slice).collect();
        out.row_of("mean", "mean / first column", means(&rows).into_iter().map(|mean| shown(mean, 2)));
    }
    out.end()
}

/// Makes a row for each group: the geometric mean of its rows, each divided by its first column.
fn group_means(table: &published::PublishedTable, columns: &[&str], values: &Values, caption: &str) -> String {
    if !is_measured(values) {
        return format!("<p class=\"quiet\">{}: {NOT_MEASURED}.</p>", escape(caption));
    }
    let caption = format!("{}: mean of each row over its first column", caption.split(',').next().unwrap_or_default());
    let mut out = HtmlTable::new("numbers", &caption, &[&[""], columns].concat());
    let mut groups: Vec<(&str, Vec<&[Option<f64>]>)> = Vec::new();
    for (row, values) in table.rows.iter().zip(values) {
        match groups.last_mut() {
            Some((group, rows)) if *group == row.group => rows.push(values),
            _ => groups.push((&row.group, vec![values])),
        }
    }
    for (group, rows) in groups {
        out.row(group, means(&rows).into_iter().map(|mean| shown(mean, 2)));
    }
    out.end()
}

fn shown(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(|| "–".to_owned(), |value| grouped(value, decimals))
}

fn section_missing(record: &Record) -> String {
    let mut text = "<h2 id=\"missing\">What was not measured</h2>\n".to_owned();
    let missing: Vec<_> = record.peers.iter().filter(|peer| !peer.is_here).collect();
    if !missing.is_empty() {
        text.push_str("<p>Peers that this machine does not have, and how to get them:</p>\n<ul>\n");
        for peer in &missing {
            let _ = writeln!(text, "<li>{}: <code>{}</code></li>", escape(&peer.name), escape(&peer.text));
        }
        text.push_str("</ul>\n");
    }
    let failed = record.turns.iter().filter_map(|turn| Some((&turn.part, turn.number, turn.failure.as_ref()?)));
    let mut lines: Vec<String> = failed
        .map(|(part, turn, why)| format!("<b>{}</b>, turn {turn}, failed: {}", escape(part), escape(why)))
        .collect();
    lines.extend(
        record.left_out.iter().map(|(part, why)| format!("<b>{}</b> was left out: {}", escape(part), escape(why))),
    );
    let said: BTreeSet<(&str, &str)> = record
        .turns
        .iter()
        .flat_map(|turn| turn.missing.iter().map(|why| (turn.part.as_str(), why.as_str())))
        .collect();
    lines.extend(said.into_iter().map(|(part, why)| format!("<b>{}</b>: {}", escape(part), escape(why))));
    if !lines.is_empty() {
        let _ = writeln!(text, "<ul>\n<li>{}</li>\n</ul>", lines.join("</li>\n<li>"));
    }
    let without: Vec<String> =
        without_figures(record).iter().map(|comparison| escape(&comparison_name(comparison))).collect();
    if !without.is_empty() {
        let _ = writeln!(
            text,
            "<details><summary>{} comparisons without figures</summary><ul><li>{}</li></ul></details>",
            without.len(),
            without.join("</li>\n<li>")
        );
    } else if lines.is_empty() && missing.is_empty() {
        text.push_str("<p>Nothing: every part ran, and every peer was here.</p>\n");
    }
    text
}

fn section_raw(record: &Record) -> String {
    let mut text = "<h2 id=\"raw\">Commands and raw figures</h2>\n".to_owned();
    let mut table = HtmlTable::new("words", "", &["part", "turns", "seconds", "command"]);
    let mut parts: Vec<(&str, Vec<&super::record::Turn>)> = Vec::new();
    for turn in &record.turns {
        match parts.iter_mut().find(|(part, _)| *part == turn.part) {
            Some((_, turns)) => turns.push(turn),
            None => parts.push((&turn.part, vec![turn])),
        }
    }
    for (part, turns) in &parts {
        let seconds: Vec<String> =
            turns.iter().map(|turn| turn.seconds.map_or_else(|| "–".to_owned(), |s| format!("{s:.0}"))).collect();
        table.row(part, [turns.len().to_string(), seconds.join(" "), turns[0].command.clone()]);
    }
    text.push_str(&table.end());
    text.push_str("<p class=\"quiet\">Each figure is the median of its turns, with the lowest and the highest.</p>\n");
    let mut benches: BTreeMap<&str, Vec<(&Key, &Series)>> = BTreeMap::new();
    for (key, series) in &record.series {
        benches.entry(&key.bench).or_default().push((key, series));
    }
    for (bench, figures) in benches {
        let _ = writeln!(text, "<details><summary>{}: {} figures</summary>", escape(bench), figures.len());
        let mut table = HtmlTable::new(
            "numbers",
            "",
            &["case", "subject", "metric", "median", "lowest", "highest", "turns", "unit"],
        );
        for (key, series) in figures {
            let Spread { median, low, high, turns } = series.spread();
            let numbers = [median, low, high].map(figure);
            let [median, low, high] = numbers;
            table.row(&key.case, [&key.subject, &key.metric, &median, &low, &high, &turns.to_string(), &series.unit]);
        }
        text.push_str(&table.end());
        text.push_str("</details>\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{
        super::{comparisons::COMPARISONS, html::tests::assert_well_formed, record::Line, verdict::Pairs},
        *,
    };

    /// Makes a run with figures for every comparison, some won and some lost.
    fn whole(turns: u32, slower: f64) -> Record {
        let mut record = Record::default();
        record.add(Line::about("", "2 CPUs of a machine", "machine", 1.8e9, ""));
        for turn in 1..=turns {
            record.add(Line::about("all", "pagefold-bench all --json", "turn", f64::from(turn), ""));
            for (number, comparison) in COMPARISONS.iter().enumerate() {
                for (pick, value) in
                    [(comparison.ours, 3.0 + f64::from(turn) / 10.0), (comparison.peer, number as f64 + 1.0)]
                {
                    let case = pick.case.replace('*', "x");
                    let case =
                        if comparison.pairs == Pairs::Same { comparison.ours.case.replace('*', "x") } else { case };
                    let line = Line::about(&case, pick.subject, &pick.metric.replace('*', "x"), value * slower, "MB/s");
                    record.add(Line { bench: pick.bench.to_owned(), ..line });
                }
            }
            record.add(Line::about("all", "", "seconds", 12.0, "s"));
        }
        record
    }

    #[test]
    fn the_page_is_well_formed_and_has_every_verdict() {
        let record = whole(3, 1.0);
        let page = page(&record, "report.jsonl", None);
        assert_well_formed(&page);
        assert_eq!(without_figures(&record).len(), 0);
        assert!(!page.contains("Not measured"), "every part has figures");
        for group in GROUPS {
            let link = format!("<a href=\"#{0}\">", anchor(group.name));
            let heading = format!("<h3 id=\"{0}\">", anchor(group.name));
            assert!(page.contains(&link) && page.contains(&heading), "{}", group.name);
        }
        assert_eq!(page.matches("<th class=\"what\" scope=\"row\">").count(), COMPARISONS.len());
        for comparison in COMPARISONS {
            let row = format!("{}<small>{} / {}</small>", comparison.what, comparison.ours_name, comparison.peer_name);
            assert!(page.contains(&escape_quotes(&row)), "{row}");
        }
        for table in tables() {
            assert!(page.contains(&escape(table.title)), "{}", table.title);
        }
        assert!(page.contains("tr class=\"ours\"") && page.contains("tr class=\"peer\""));
        for outside in ["http://", "https://", "<script", "src=", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
    }

    fn escape_quotes(row: &str) -> String {
        row.replace('\'', "&#39;")
    }

    #[test]
    fn every_group_of_comparisons_is_shown() {
        for comparison in COMPARISONS {
            assert!(GROUPS.iter().any(|group| group.name == comparison.group), "{}", comparison.group);
        }
    }

    #[test]
    fn a_run_without_figures_is_a_page_too() {
        let page = page(&Record::default(), "x.jsonl", None);
        assert_well_formed(&page);
        assert!(page.contains("No comparison has figures"));
    }

    #[test]
    fn hostile_names_are_text() {
        let hostile = "</table><script>alert(\"1\")</script>&'";
        let mut record = Record::default();
        record.add(Line::about("", hostile, "machine", 0.0, ""));
        record.add(Line::about(hostile, hostile, "turn", 1.0, hostile));
        record.add(Line::about(hostile, hostile, "missing", 0.0, ""));
        record.add(Line::about(hostile, hostile, "failed", 0.0, ""));
        record.add(Line::about(hostile, hostile, "left_out", 0.0, ""));
        record.add(Line::about(hostile, hostile, "peer", 0.0, ""));
        record.add(Line::about(hostile, hostile, "cut_short", 0.0, ""));
        record.add(Line { bench: hostile.to_owned(), ..Line::about(hostile, hostile, hostile, 1.0, hostile) });
        for subject in ["fold", "liblz4"] {
            let line = Line::about(hostile, subject, "compress_mb_s", 1.0, "MB/s");
            record.add(Line { bench: "codec".to_owned(), ..line });
        }
        let baseline = Baseline { name: hostile.to_owned(), record: record.clone() };
        let page = page(&record, hostile, Some(&baseline));
        assert_well_formed(&page);
        assert!(!page.contains("<script"));
        assert!(page.contains("This run was cut short"));
    }

    #[test]
    fn what_is_missing_is_named_with_how_to_get_it() {
        let mut record = Record::default();
        record.add(Line::about("nbdkit", "apt-get install nbdkit", "peer", 0.0, ""));
        record.add(Line::about("fio", "/usr/bin/fio", "peer", 1.0, ""));
        record.add(Line::about("image", "pagefold-bench image --json", "turn", 1.0, ""));
        record.add(Line::about("image", "squashfuse: not installed", "missing", 0.0, ""));
        record.add(Line::about("image", "killed by signal 9", "failed", 0.0, ""));
        let page = page(&record, "x", None);
        assert!(page.contains("Not measured: <b>image</b>"), "{page}");
        for said in ["apt-get install nbdkit", "squashfuse: not installed", "killed by signal 9"] {
            assert!(page.contains(said), "{said}");
        }
        assert!(!page.contains("/usr/bin/fio"));
    }

    #[test]
    fn a_baseline_is_compared() {
        let (record, baseline) = (whole(2, 1.0), Baseline { name: "old.jsonl".to_owned(), record: whole(2, 2.0) });
        let page = page(&record, "x", Some(&baseline));
        assert_well_formed(&page);
        assert!(page.contains("Compared with old.jsonl") && page.contains("Figures that fell"));
    }
}
