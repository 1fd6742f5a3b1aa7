//! HTML as text: escaping, tables, and the frame of a self-contained page.

use std::fmt::{Display, Write};

/// Styles of the page, for screens of any width, light and dark, and for paper.
const STYLE: &str = include_str!("style.css");

/// Escapes text for an element or a quoted attribute.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // HTML allows no other control characters.
            '\n' | '\t' => out.push(character),
            character if character.is_control() => out.push('\u{fffd}'),
            character => out.push(character),
        }
    }
    out
}

/// Returns a whole page with `body`, which is HTML.
pub(super) fn page(title: &str, body: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <meta name=\"color-scheme\" content=\"light dark\"/>\n<title>{}</title>\n<style>\n{STYLE}</style>\n</head>\n\
         <body>\n<main>\n{body}</main>\n</body>\n</html>\n",
        escape(title)
    )
}

/// A table that scrolls if it is too wide for its place.
pub(super) struct HtmlTable {
    text: String,
}

impl HtmlTable {
    /// Begins a table. The first of `columns` is the heading of the names, the others are headings
    /// of numbers.
    pub(super) fn new(class: &str, caption: &str, columns: &[&str]) -> Self {
        let mut text = format!("<div class=\"scroll\"><table class=\"{class}\">");
        if !caption.is_empty() {
            let _ = write!(text, "<caption>{}</caption>", escape(caption));
        }
        text.push_str("<thead><tr>");
        for column in columns {
            let _ = write!(text, "<th scope=\"col\">{}</th>", escape(column));
        }
        text.push_str("</tr></thead><tbody>\n");
        Self { text }
    }

    /// Adds a row whose first cell is its name.
    pub(super) fn row(&mut self, name: &str, cells: impl IntoIterator<Item = impl Display>) {
        self.row_of("", name, cells);
    }

    /// Adds a row with a class.
    pub(super) fn row_of(&mut self, class: &str, name: &str, cells: impl IntoIterator<Item = impl Display>) {
        let _ = write!(self.text, "<tr class=\"{class}\"><th scope=\"row\">{}</th>", escape(name));
        for cell in cells {
            let _ = write!(self.text, "<td>{}</td>", escape(&cell.to_string()));
        }
        self.text.push_str("</tr>\n");
    }

    pub(super) fn end(mut self) -> String {
        self.text.push_str("</tbody></table></div>\n");
        self.text
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Panics if elements of `html` are not closed in order, or if a character is not escaped.
    pub(in super::super) fn assert_well_formed(html: &str) {
        let (mut open, mut rest) = (Vec::new(), html.strip_prefix("<!DOCTYPE html>").expect("a doctype"));
        while let Some(at) = rest.find('<') {
            let text = &rest[..at];
            assert!(open.last() == Some(&"style") || !text.contains('>'), "{text}");
            for (at, _) in text.match_indices('&') {
                let end = text[at..].find(';').unwrap_or_else(|| panic!("a bare & in {text}"));
                assert!(end <= 7, "a bare & in {text}");
            }
            rest = &rest[at + 1..];
            let end = rest.find('>').expect("the end of a tag");
            let tag = &rest[..end];
            assert!(!tag.contains('<'), "{tag}");
            assert!(tag.matches('"').count().is_multiple_of(2), "{tag}");
            rest = &rest[end + 1..];
            if let Some(name) = tag.strip_prefix('/') {
                assert_eq!(open.pop(), Some(name), "closed before it is ended");
            } else if !tag.ends_with('/') {
                open.push(tag.split_whitespace().next().expect("a name"));
            }
        }
        assert!(open.is_empty() && rest.trim().is_empty(), "{open:?} {rest}");
    }

    #[test]
    fn nothing_of_a_name_becomes_html() {
        let hostile = "<script>alert('1')</script>\"&\u{0}";
        assert_eq!(escape(hostile), "&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;&quot;&amp;\u{fffd}");
        let mut table = HtmlTable::new("x", hostile, &[hostile]);
        table.row(hostile, [hostile]);
        let page = page(hostile, &table.end());
        assert_well_formed(&page);
        assert!(!page.contains("<script"));
    }

    #[test]
    #[should_panic(expected = "closed before")]
    fn the_check_sees_what_is_not_closed() {
        assert_well_formed("<!DOCTYPE html><p><b>x</p></b>");
    }
}
