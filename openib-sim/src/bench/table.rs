//! A table of results.

/// What is in a column.
#[derive(Clone, Debug)]
pub enum Cell {
    /// Nothing to say.
    None,
    /// A count.
    Count(f64),
    /// A ratio: below 1 is better than what it is compared with.
    Ratio(f64),
    /// Words, with their unit.
    Text(String),
}

impl core::fmt::Display for Cell {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::None => f.pad("-"),
            Self::Count(value) => f.pad(&format!("{value:.0}")),
            Self::Ratio(value) => f.pad(&format!("{value:.2}")),
            Self::Text(text) => f.pad(text),
        }
    }
}

/// A line.
#[derive(Clone, Debug)]
pub struct Row {
    /// What was measured.
    pub name: String,
    /// What came out.
    pub cells: Vec<Cell>,
}

/// Prints `rows` as a table (Markdown).
pub fn print(title: &str, columns: &[&str], rows: &[Row]) {
    let first = rows.iter().map(|row| row.name.chars().count());
    let first = first.chain([title.chars().count()]).max().unwrap_or(0);
    let width = |index: usize| {
        let cells = rows.iter().filter_map(|row| row.cells.get(index));
        let cells = cells.map(|cell| cell.to_string().chars().count());
        let head = columns.get(index).map_or(0, |head| head.chars().count());
        cells.chain([head]).max().unwrap_or(0)
    };
    let mut line = format!("| {title:<first$} |");
    let mut rule = format!("| {} |", "-".repeat(first));
    for (index, head) in columns.iter().enumerate() {
        let width = width(index);
        line.push_str(&format!(" {head:>width$} |"));
        rule.push_str(&format!(" {}: |", "-".repeat(width.saturating_sub(1))));
    }
    crate::say!("{line}\n{rule}");
    for row in rows {
        let mut line = format!("| {:<first$} |", row.name);
        for (index, cell) in row.cells.iter().enumerate() {
            let width = width(index);
            line.push_str(&format!(" {cell:>width$} |"));
        }
        crate::say!("{line}");
    }
    crate::say!("");
}
