//! The conformance suite against the page that it is made of: no line of chapter 14 is forgotten, and no case is left
//! out of the list that makes tests.

use openib_tests::conformance::NOT_COVERED;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/conformance")
}

/// The files of cases: group and text.
fn groups() -> BTreeMap<String, String> {
    let not_cases = ["mod", "list", "rig", "declared", "not_covered", "crowd"];
    let entries = std::fs::read_dir(root()).unwrap();
    entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .map(|path| {
            (
                path.file_stem().unwrap().to_str().unwrap().to_string(),
                path,
            )
        })
        .filter(|(group, _)| !not_cases.contains(&group.as_str()))
        .map(|(group, path)| (group, std::fs::read_to_string(path).unwrap()))
        .collect()
}

/// The T-numbers that a text names.
fn lines(text: &str) -> BTreeSet<u32> {
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric());
    let number = |word: &str| {
        let digits = word.strip_prefix('T').filter(|digits| digits.len() == 3)?;
        digits.parse().ok()
    };
    words.filter_map(number).collect()
}

#[test]
fn every_line_of_chapter_14_has_a_case_or_a_reason() {
    let page = root().join("../../../docs/reference/verbs.md");
    let page = std::fs::read_to_string(page).unwrap();
    let chapter = page.split("# 14. Conformance list").nth(1).unwrap();
    let chapter = chapter.split("# 15.").next().unwrap();
    let wanted = lines(chapter);
    assert_eq!(wanted, (1..=168).collect());
    let texts: Vec<String> = groups().into_values().collect();
    let comments = texts.iter().flat_map(|text| text.lines());
    let comments = comments.filter(|line| line.starts_with("///"));
    let cases: BTreeSet<u32> = comments.flat_map(lines).collect();
    let reasons: BTreeSet<u32> = NOT_COVERED.iter().map(|(line, _)| *line).collect();
    let both: Vec<_> = cases.intersection(&reasons).collect();
    assert!(
        both.is_empty(),
        "{both:?} have a case and a reason to have none"
    );
    let neither: Vec<_> = wanted
        .iter()
        .filter(|line| !cases.contains(line) && !reasons.contains(line))
        .collect();
    assert!(
        neither.is_empty(),
        "{neither:?} have neither a case nor a reason"
    );
}

#[test]
fn every_case_is_in_the_list() {
    let list = std::fs::read_to_string(root().join("list.rs")).unwrap();
    let list = list.split("macro_rules").nth(1).unwrap();
    for (group, text) in groups() {
        let of_group = list.split(&format!("{group}: [")).nth(1);
        let of_group = of_group.unwrap_or_else(|| panic!("the group `{group}` is not in the list"));
        let listed = of_group
            .split(']')
            .next()
            .unwrap()
            .split(',')
            .map(str::trim);
        let listed: BTreeSet<&str> = listed.filter(|name| !name.is_empty()).collect();
        let functions = text.split("\npub fn ").skip(1);
        let cases: BTreeSet<&str> = functions
            .map(|rest| rest.split('<').next().unwrap())
            .collect();
        assert_eq!(listed, cases, "group `{group}`");
    }
}

#[test]
fn the_cases_that_rest_on_a_choice_are_cases() {
    let page = std::fs::read_to_string(root().join("../../../docs/status.md")).unwrap();
    let chapter = page
        .split("## Cases of the conformance suite that rest on a choice")
        .nth(1);
    let chapter = chapter.unwrap().split("\n## ").next().unwrap();
    let rows = chapter.lines().filter(|line| line.starts_with("| `"));
    let cases = rows.filter_map(|row| row.split('|').nth(1));
    let named: Vec<&str> = cases
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .collect();
    assert!(named.len() > 30, "{named:?}");
    let texts: Vec<String> = groups().into_values().collect();
    for case in named {
        let start = format!("pub fn {case}<");
        assert!(texts.iter().any(|text| text.contains(&start)), "{case}");
    }
}
