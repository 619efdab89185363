//! Caches of librbd's own, which acknowledge a write before the cluster has it.
//!
//! The client turns them off, but what a pool or an image says in the cluster is stronger, and an image stronger than its pool. So
//! librbd is asked what is in effect once the image is open. By then it has decided on its caches, also on the one that it makes whenever it
//! takes the lock: what is set later counts from the next opening on.

use std::ffi::{CStr, c_char, c_int};
use std::ptr::null_mut;

use spillway_core::Error;

use super::cluster::{RbdOptions, about, check};
use super::image::OpenImage;
use super::library::{ConfigLibrary, ConfigOption, ImageHandle, SOURCE_CONFIG, SOURCE_IMAGE};
use super::name::ImageName;
use crate::mutant;

/// Options for which there is room at first. Where there are more, librbd is asked again.
const OPTIONS: c_int = 256;

/// Values that turn an option off, in any case of letters.
const OFF: [&str; 5] = ["false", "0", "no", "off", "disabled"];

/// The option of the cache in memory. Its policy does not matter: also one that writes through takes memory that nobody counts.
const CACHE: &str = "rbd_cache";
/// Its key in the metadata of an image that sets it.
const CACHE_KEY: &CStr = c"conf_rbd_cache";
/// The option of the cache on a disk of this host (Ceph 16 and later), which the plugin makes.
const WRITE_LOG: &str = "rbd_persistent_cache_mode";
const PLUGINS: &str = "rbd_plugins";
const WRITE_LOG_PLUGIN: &str = "pwl_cache";

/// Who has said what an option is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Client,
    Pool,
    Image,
}

/// An option of an image as it is in effect.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Setting {
    name: String,
    value: String,
    source: Source,
}

impl OpenImage {
    /// Refuses an image for which a cache of librbd's own is on.
    pub(super) fn refuse_caches(&self, options: &RbdOptions) -> Result<(), Error> {
        let library = ConfigLibrary::get().filter(|_| !mutant::on("rbd: list no options"));
        let settings = in_effect(library, self.image, || self.metadata(CACHE_KEY))
            .map_err(|errno| about(options, errno, "its options in the cluster cannot be read"))?;
        own_cache(&settings).map_or(Ok(()), |setting| Err(refusal(&options.name, setting)))
    }
}

/// The options of an open image that matter. Where a library lists none, its only cache is that in memory, and the pool has no options: the
/// image itself is asked.
fn in_effect(
    library: Option<&ConfigLibrary>,
    image: ImageHandle,
    cache_of_image: impl FnOnce() -> Result<Option<String>, i32>,
) -> Result<Vec<Setting>, i32> {
    match library.map_or(Err(libc::ENOENT), |library| settings(library, image)) {
        // So answer libraries that want an object for the options of a pool, where the pool has none. Later ones do without it.
        Err(libc::ENOENT) => {
            let of_image = |value| Setting { name: CACHE.to_owned(), value, source: Source::Image };
            Ok(cache_of_image()?.map(of_image).into_iter().collect())
        }
        settings => settings,
    }
}

/// All options of an open image.
fn settings(library: &ConfigLibrary, image: ImageHandle) -> Result<Vec<Setting>, i32> {
    let none = ConfigOption { name: null_mut(), value: null_mut(), source: SOURCE_CONFIG };
    let mut count = OPTIONS;
    loop {
        let room = count;
        let mut found = vec![none; room as usize];
        // SAFETY: the image is open, there is room for so many.
        let listed =
            check(unsafe { (library.rbd_config_image_list)(image, found.as_mut_ptr(), &raw mut count) });
        match listed {
            // Nothing was written, and it is known how many there are.
            Err(libc::ERANGE) if count > room => continue,
            Err(errno) => return Err(errno),
            Ok(_) => {}
        }
        assert!((0..=room).contains(&count), "{count} options where there is room for {room}");
        let settings = found[..count as usize].iter().map(Setting::of).collect();
        // SAFETY: they are freed once, after they were copied.
        unsafe { (library.rbd_config_image_list_cleanup)(found.as_mut_ptr(), count) };
        return Ok(settings);
    }
}

impl Setting {
    fn of(option: &ConfigOption) -> Self {
        let text = |at: *mut c_char| {
            // SAFETY: the library has written both, each with a zero at its end.
            unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned()
        };
        let source = match option.source {
            SOURCE_CONFIG => Source::Client,
            SOURCE_IMAGE => Source::Image,
            // Of one that is not known yet, an image can say otherwise too.
            _ => Source::Pool,
        };
        Self { name: text(option.name), value: text(option.value), source }
    }

    /// Whether it is on although the client has turned it off.
    fn is_forced_on(&self) -> bool {
        self.source != Source::Client && !OFF.iter().any(|off| self.value.eq_ignore_ascii_case(off))
    }
}

/// The option that gives librbd a cache of its own, if one does.
fn own_cache(settings: &[Setting]) -> Option<&Setting> {
    let has_plugin = |setting: &Setting| setting.value.contains(WRITE_LOG_PLUGIN);
    let write_log = find(settings, WRITE_LOG).filter(|_| find(settings, PLUGINS).is_some_and(has_plugin));
    [find(settings, CACHE), write_log].into_iter().flatten().find(|setting| setting.is_forced_on())
}

fn find<'a>(settings: &'a [Setting], name: &str) -> Option<&'a Setting> {
    settings.iter().find(|setting| setting.name == name)
}

fn refusal(image: &ImageName, setting: &Setting) -> Error {
    let (pool, spec) = (&image.pool, image.image_spec());
    let Setting { name, value, source } = setting;
    let off = if name == CACHE { "false" } else { "disabled" };
    let (place, remedy) = match source {
        Source::Image => ("image", format!("rbd config image remove {spec} {name}")),
        Source::Client | Source::Pool => (
            "pool",
            format!(
                "rbd config pool remove {pool} {name}; or turn it off for this image alone: \
                 rbd config image set {spec} {name} {off}"
            ),
        ),
    };
    Error::invalid(format!(
        "{image}: its {place} sets {name} ({value}) in the cluster, which overrides this server: librbd then \
         acknowledges writes that the cluster does not have yet, and a write that fails, or a lost host, may \
         take flushed data with it; remove it: {remedy}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(name: &str, value: &str, source: Source) -> Setting {
        Setting { name: name.to_owned(), value: value.to_owned(), source }
    }

    #[test]
    fn a_cache_is_one_that_the_image_or_its_pool_has_turned_on() {
        let on = ["true", "True", "1", "yes"].map(|value| (value, true));
        let off = ["false", "FALSE", "0", "off"].map(|value| (value, false));
        for (value, on) in on.into_iter().chain(off) {
            for (source, stronger) in [(Source::Client, false), (Source::Pool, true), (Source::Image, true)] {
                let settings = [setting("rbd_cache_size", "1", source), setting(CACHE, value, source)];
                let found = own_cache(&settings).map(|found| &*found.name);
                assert_eq!(found, (on && stronger).then_some(CACHE), "{value} of {source:?}");
            }
        }
        assert_eq!(own_cache(&[]), None);
    }

    #[test]
    fn a_write_log_needs_its_plugin() {
        for (plugins, mode, on) in [
            ("pwl_cache", "ssd", true),
            ("parent_cache,pwl_cache", "rwl", true),
            ("", "ssd", false),
            ("parent_cache", "ssd", false),
            ("pwl_cache", "disabled", false),
        ] {
            // The plugin may be in the configuration of the client.
            let settings =
                [setting(PLUGINS, plugins, Source::Client), setting(WRITE_LOG, mode, Source::Pool)];
            let found = own_cache(&settings).map(|found| &*found.name);
            assert_eq!(found, on.then_some(WRITE_LOG), "{mode} with {plugins:?}");
        }
    }

    #[test]
    fn a_refusal_names_the_place_and_the_command() {
        let image = ImageName::parse("rbd:pool/space/image").unwrap();
        let of_image = refusal(&image, &setting(CACHE, "true", Source::Image));
        let words = of_image.message();
        assert!(words.starts_with("rbd:pool/space/image: its image sets rbd_cache (true)"), "{words}");
        assert!(words.ends_with(": rbd config image remove pool/space/image rbd_cache"), "{words}");
        let of_pool = refusal(&image, &setting(WRITE_LOG, "ssd", Source::Pool));
        let words = of_pool.message();
        assert!(words.contains("its pool sets rbd_persistent_cache_mode (ssd)"), "{words}");
        for command in [
            ": rbd config pool remove pool rbd_persistent_cache_mode;",
            ": rbd config image set pool/space/image rbd_persistent_cache_mode disabled",
        ] {
            assert!(words.contains(command), "{words}");
        }
    }

    /// A library with as many options as the image says, which is a number here.
    extern "C" fn list(image: ImageHandle, options: *mut ConfigOption, count: *mut c_int) -> c_int {
        // SAFETY: the image is a number, and the count is one too.
        let (wanted, room) = unsafe { (*image.cast::<c_int>(), *count) };
        // SAFETY: the place is the caller's.
        unsafe { *count = wanted };
        if wanted > room {
            return -libc::ERANGE;
        }
        let option = ConfigOption {
            name: c"rbd_cache".as_ptr().cast_mut(),
            value: c"true".as_ptr().cast_mut(),
            source: SOURCE_IMAGE,
        };
        for number in 0..wanted as usize {
            // SAFETY: there is room for so many.
            unsafe { options.add(number).write(option) };
        }
        0
    }

    /// A library that wants an object for the options of a pool.
    extern "C" fn list_nothing(_: ImageHandle, _: *mut ConfigOption, _: *mut c_int) -> c_int {
        -libc::ENOENT
    }

    /// Nothing of it was allocated.
    extern "C" fn cleanup(_: *mut ConfigOption, _: c_int) {}

    #[test]
    fn an_image_is_asked_itself_where_the_library_lists_nothing() {
        let lists = ConfigLibrary { rbd_config_image_list: list, rbd_config_image_list_cleanup: cleanup };
        let not = ConfigLibrary { rbd_config_image_list: list_nothing, ..lists };
        let mut count: c_int = 0;
        let image: ImageHandle = (&raw mut count).cast();
        for library in [None, Some(&not)] {
            let asked = |value: Option<&str>| in_effect(library, image, || Ok(value.map(str::to_owned)));
            assert_eq!(asked(Some("true")), Ok(vec![setting(CACHE, "true", Source::Image)]));
            assert_eq!(asked(None), Ok(vec![]));
            assert_eq!(in_effect(library, image, || Err(libc::EIO)), Err(libc::EIO));
        }
        assert_eq!(in_effect(Some(&lists), image, || panic!("the library knows")), Ok(vec![]));
    }

    #[test]
    fn all_options_are_listed_however_many_there_are() {
        let library = ConfigLibrary { rbd_config_image_list: list, rbd_config_image_list_cleanup: cleanup };
        for mut wanted in [0, 1, OPTIONS - 1, OPTIONS, OPTIONS + 1, 5 * OPTIONS] {
            let found = settings(&library, (&raw mut wanted).cast()).expect("it lists them");
            assert_eq!(found.len(), wanted as usize);
            assert!(found.iter().all(|found| *found == setting(CACHE, "true", Source::Image)));
        }
    }
}
