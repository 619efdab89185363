//! `spillway why`: what the layers of a device have decided by themselves lately, and for what reason.

use std::fmt::Alignment;

use anyhow::Result;
use serde::Deserialize;
use spillway_core::size::human;
use spillway_export::control::{Operation, Shown};

use super::connection::{Connection, QUESTION_PATIENCE, print};
use crate::cli::WhyOptions;
use crate::runtime_folder::RuntimeFolder;
use crate::tables::aligned;

/// The attribute that each layer has which decides something.
const DECISIONS: &str = "decisions";

/// A row of it.
#[derive(Debug, Deserialize)]
struct Decision {
    age: u64,
    lasted: u64,
    times: u64,
    bytes: u64,
    waited: u64,
    decision: String,
    rule: String,
    figures: String,
}

/// `spillway why`.
pub(crate) fn why(folder: &RuntimeFolder, options: &WhyOptions) -> Result<()> {
    let mut connection = Connection::to_device(folder, &options.device)?;
    connection.wait_at_most(QUESTION_PATIENCE);
    let rows = connection.attributes(&options.device)?;
    let mut all = Vec::new();
    for row in rows.into_iter().filter(|row| row.name.rsplit('.').next() == Some(DECISIONS)) {
        let get = Operation::Get { device: options.device.clone(), attribute: Some(row.name), from: None };
        all.extend(connection.values(&get)?.into_iter().map(|shown| (row.part.clone(), shown)));
    }
    print(&if options.json { json(all)? } else { text(&options.device, all)? })
}

/// The rows with their part, as an object of parts.
fn json(all: Vec<(String, Shown)>) -> Result<String> {
    let parts: serde_json::Map<_, _> = all.into_iter().map(|(part, shown)| (part, shown.value)).collect();
    super::json(&parts)
}

fn text(device: &str, all: Vec<(String, Shown)>) -> Result<String> {
    let mut decisions = Vec::new();
    for (part, shown) in all {
        let rows: Vec<Decision> = serde_json::from_value(shown.value)?;
        decisions.extend(rows.into_iter().map(|row| (part.clone(), row)));
    }
    if decisions.is_empty() {
        return Ok(format!(
            "{device}: nothing so far was written back, spilled, slowed, held or refused by a layer of its own accord\n"
        ));
    }
    // The latest last, where the eye is.
    decisions.sort_by_key(|(_, decision)| std::cmp::Reverse(decision.age));
    assert!(decisions.is_sorted_by_key(|(_, decision)| std::cmp::Reverse(decision.age)), "the latest last");
    let titles = ["AGO", "PART", "DECISION", "RULE", "FIGURES"].map(str::to_owned);
    let rows = decisions.iter().map(|(part, decision)| cells(part, decision));
    let all: Vec<_> = [titles].into_iter().chain(rows).collect();
    Ok(aligned(&[Alignment::Left; 5], &all).join("\n") + "\n")
}

fn cells(part: &str, decision: &Decision) -> [String; 5] {
    let Decision { age, rule, figures, .. } = decision;
    [format!("{age} s"), part.to_owned(), in_words(decision), rule.clone(), figures.clone()]
}

/// `write back 12.3M (41 times in 10 s)`.
fn in_words(Decision { decision, bytes, times, lasted, waited, .. }: &Decision) -> String {
    let bytes = if *bytes > 0 { format!(" {}", human(*bytes)) } else { String::new() };
    let mut more = Vec::new();
    if *times > 1 {
        more.push(format!("{times} times in {} s", lasted + 1));
    }
    if *waited > 0 {
        more.push(format!("for {waited} ms in all"));
    }
    let more = if more.is_empty() { String::new() } else { format!(" ({})", more.join(", ")) };
    format!("{decision}{bytes}{more}")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;

    fn shown(value: Json) -> Shown {
        Shown { name: DECISIONS.into(), value, text: String::new(), next: None }
    }

    fn row(age: u64, decision: &str, times: u64, bytes: u64, waited: u64) -> Json {
        json!({ "age": age, "lasted": 9, "times": times, "bytes": bytes, "waited": waited, "decision": decision,
            "rule": "a rule", "figures": "7 %" })
    }

    #[test]
    fn decisions_of_all_parts_are_in_order_and_say_how_much_and_how_often() {
        let zram = shown(json!([row(70, "spill", 41, 12 << 20, 0), row(2, "slow writers", 7, 0, 350)]));
        let limits = shown(json!([row(8, "hold writes", 1, 4096, 0)]));
        let all = vec![("zram".to_owned(), zram), ("limits".to_owned(), limits)];
        assert_eq!(
            text("ram0", all).unwrap().lines().collect::<Vec<_>>(),
            [
                "AGO  PART   DECISION                                          RULE   FIGURES",
                "70 s zram   spill 12M (41 times in 10 s)                      a rule 7 %",
                "8 s  limits hold writes 4K                                    a rule 7 %",
                "2 s  zram   slow writers (7 times in 10 s, for 350 ms in all) a rule 7 %",
            ]
        );
    }

    #[test]
    fn without_a_decision_that_is_said() {
        let said = text("ram0", vec![("zram".to_owned(), shown(json!([])))]).unwrap();
        assert!(said.starts_with("ram0: nothing so far"), "{said}");
    }
}
