//! The names under which NBD clients find a device: its own, and a second one by which they can only read.

use anyhow::{Context, Result};
use spillway_export::Alias;

use crate::exit::Failure;
use crate::runtime_folder::check_name;

/// Most numbers of a name that are tried.
pub(crate) const NUMBERS_MAX: u32 = 1000;

/// Refuses what cannot be the name of a device whatever number its '%' stands for.
pub(crate) fn check_template(template: &str) -> Result<()> {
    let checked = check_name(&numbered(template, NUMBERS_MAX - 1));
    checked.with_context(|| {
        format!("--name {template}, where one % may stand for a number up to {}", NUMBERS_MAX - 1)
    })
}

/// The name that `template` stands for with this number: in place of its first '%'.
pub(crate) fn numbered(template: &str, number: u32) -> String {
    template.replacen('%', &number.to_string(), 1)
}

/// What is asked for beside a device's name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Naming {
    /// Whether lists leave the device's own name out.
    pub(crate) hidden: bool,
    /// The second name, in which a '%' stands for the number of the device.
    pub(crate) alias: Option<Alias>,
}

impl Naming {
    /// What is asked for by the options of a command, or the keys of a file.
    pub(crate) fn new(hidden: bool, name: Option<String>, name_hidden: bool) -> Result<Self> {
        if name.is_none() && name_hidden {
            let words = "read_only_name_hidden is for a read-only name: give read_only_name NAME too";
            return Err(Failure::usage(words.to_owned()).into());
        }
        Ok(Self { hidden, alias: name.map(|name| Alias { name, hidden: name_hidden }) })
    }

    /// Refuses what cannot be a second name of a device of that name, which may be a template as this one.
    fn check(&self, device: &str) -> Result<()> {
        let Some(alias) = &self.alias else { return Ok(()) };
        let about = || format!("read_only_name {}", alias.name);
        let longest =
            if device.contains('%') { numbered(&alias.name, NUMBERS_MAX - 1) } else { alias.name.clone() };
        check_name(&longest).with_context(about)?;
        if (0..NUMBERS_MAX).any(|number| numbered(device, number) == numbered(&alias.name, number)) {
            let text = format!("the device is named {device}: give another name");
            return Err(Failure::usage(text)).with_context(about);
        }
        Ok(())
    }

    /// Puts the number of the device in the place of its '%'.
    pub(crate) fn take_number(&mut self, number: u32) {
        if let Some(alias) = &mut self.alias {
            alias.name = numbered(&alias.name, number);
            assert!(!alias.name.contains('%'), "the second name {} has another number to come", alias.name);
        }
    }
}

/// Refuses what cannot be a second name, and a name that is given twice, of `devices` by their names.
pub(crate) fn check<'a>(devices: impl Iterator<Item = (&'a str, &'a Naming)>) -> Result<()> {
    let mut names = Vec::new();
    for (device, naming) in devices {
        naming.check(device)?;
        names.extend([device].into_iter().chain(naming.alias.as_ref().map(|alias| alias.name.as_str())));
    }
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => {
            let text = format!("two devices are named {:?}, by name or read_only_name: rename one", pair[0]);
            Err(Failure::usage(text).into())
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(alias: &str, device: &str) -> Result<()> {
        Naming::new(false, Some(alias.to_owned()), false)?.check(device)
    }

    #[test]
    fn a_second_name_is_one_and_another() {
        for (alias, device) in [("ro", "ram0"), ("ram%-ro", "ram%"), ("ro", "ram%"), ("ro%", "ram%")] {
            checked(alias, device).unwrap_or_else(|why| panic!("{alias} of {device}: {why:#}"));
        }
        for (alias, device, words) in [
            ("ram0", "ram0", "the device is named ram0"),
            ("ram7", "ram%", "the device is named ram%"),
            ("ram%", "ram%", "the device is named ram%"),
            ("ro%", "ram0", "is not allowed"),
            ("ro%%", "ram%", "is not allowed"),
            ("a/b", "ram0", "is not allowed"),
            ("", "ram0", "is not allowed"),
        ] {
            let refused = format!("{:#}", checked(alias, device).unwrap_err());
            assert!(refused.contains(words) && refused.contains("read_only_name"), "{alias}: {refused}");
        }
        assert!(Naming::new(false, None, true).is_err(), "there is no name to hide");
    }

    #[test]
    fn no_name_is_given_twice() {
        let plain = Naming::default();
        let alias = |name: &str| Naming::new(false, Some(name.to_owned()), false).unwrap();
        check([("a", &alias("b")), ("c", &plain), ("d", &alias("e"))].into_iter()).unwrap();
        let (own, of_alias) = ([("a", &plain), ("a", &plain)], [("a", &alias("b")), ("c", &alias("b"))]);
        for devices in [own, of_alias, [("a", &alias("b")), ("b", &plain)]] {
            let refused = check(devices.into_iter()).unwrap_err().to_string();
            assert!(refused.contains("two devices are named"), "{refused}");
        }
    }

    #[test]
    fn a_second_name_has_the_number_of_its_device() {
        let mut naming = Naming::new(true, Some("ram%-ro".into()), true).unwrap();
        naming.take_number(3);
        assert_eq!(naming.alias, Some(Alias { name: "ram3-ro".into(), hidden: true }));
    }
}
