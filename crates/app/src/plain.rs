//! Text that came from elsewhere, as a terminal may have it.

use std::borrow::Cow;

/// `text` without what commands a terminal: lines and tabs stay, other control characters and those that turn the direction of writing
/// become `\u001b` and the like, which means the same in JSON.
pub(crate) fn plain(text: &str) -> Cow<'_, str> {
    if !text.contains(is_command) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len() + 64);
    for character in text.chars() {
        match is_command(character) {
            true => shown.push_str(&format!("\\u{:04x}", u32::from(character))),
            false => shown.push(character),
        }
    }
    shown.into()
}

fn is_command(character: char) -> bool {
    let turns =
        matches!(character, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    turns || (character.is_control() && !matches!(character, '\n' | '\t'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_shown_and_words_stay() {
        for words in ["", "a\tb\n", "é 漢 \u{1f980}", r"\u001b"] {
            assert!(matches!(plain(words), Cow::Borrowed(same) if same == words));
        }
        assert_eq!(
            plain("a\x1b]0;x\x07\r\u{9b}2J\u{7f}\u{202e}z"),
            r"a\u001b]0;x\u0007\u000d\u009b2J\u007f\u202ez"
        );
        let json = serde_json::to_string("\u{9b}\u{7f}\x1b").unwrap();
        assert_eq!(serde_json::from_str::<String>(&plain(&json)).unwrap(), "\u{9b}\u{7f}\x1b");
    }
}
