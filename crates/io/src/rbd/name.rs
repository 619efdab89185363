//! The name of an image, as Ceph's tools write it.

use std::fmt;

use spillway_core::Error;

/// `POOL[/NAMESPACE]/IMAGE[@SNAP]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageName {
    /// The pool.
    pub pool: String,
    /// The namespace of the pool; empty for that of the pool itself.
    pub namespace: String,
    /// The image.
    pub image: String,
    /// The snapshot of it.
    pub snapshot: Option<String>,
}

impl ImageName {
    /// Of `rbd:POOL[/NAMESPACE]/IMAGE[@SNAP]`; [`spillway_core::Kind::Invalid`] for anything else.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let refused =
            |why: &str| Error::invalid(format!("{text}: {why}; give rbd:POOL[/NAMESPACE]/IMAGE[@SNAP]"));
        let rest = text.strip_prefix("rbd:").ok_or_else(|| refused("it is no name of an RBD image"))?;
        let (path, snapshot) = rest.split_once('@').map_or((rest, None), |(path, snap)| (path, Some(snap)));
        let parts: Vec<&str> = path.split('/').collect();
        let (pool, namespace, image) = match parts[..] {
            [pool, image] => (pool, None, image),
            [pool, namespace, image] => (pool, Some(namespace), image),
            [_] => return Err(refused("it has no image")),
            _ => return Err(refused("it has too many parts")),
        };
        let named = [Some(pool), namespace, Some(image), snapshot];
        if named.into_iter().flatten().any(|part| part.is_empty() || part.contains(['@', '\0'])) {
            return Err(refused("a part of it is empty, or is no name"));
        }
        Ok(Self {
            pool: pool.to_owned(),
            namespace: namespace.unwrap_or_default().to_owned(),
            image: image.to_owned(),
            snapshot: snapshot.map(str::to_owned),
        })
    }

    /// The image without its snapshot, as Ceph's tools take it: `POOL[/NAMESPACE]/IMAGE`.
    pub(super) fn image_spec(&self) -> String {
        let Self { pool, namespace, image, .. } = self;
        let slash = if namespace.is_empty() { "" } else { "/" };
        format!("{pool}/{namespace}{slash}{image}")
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "rbd:{}", self.image_spec())?;
        self.snapshot.as_ref().map_or(Ok(()), |snapshot| write!(out, "@{snapshot}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shown_as_they_were_given() {
        for text in ["rbd:rbd/disk", "rbd:a/b/c", "rbd:a/b@s", "rbd:a/b/c@s-1", "rbd:a b/ü"] {
            assert_eq!(ImageName::parse(text).unwrap().to_string(), text);
        }
        let name = ImageName::parse("rbd:pool/space/image@snap").unwrap();
        assert_eq!((&*name.pool, &*name.namespace, &*name.image), ("pool", "space", "image"));
        assert_eq!(name.snapshot.as_deref(), Some("snap"));
        assert_eq!(name.image_spec(), "pool/space/image");
    }

    #[test]
    fn what_is_wrong_with_a_name_is_said() {
        for (text, why) in [
            ("rbd:", "no image"),
            ("rbd:pool", "no image"),
            ("rbd:pool/", "empty"),
            ("rbd:/image", "empty"),
            ("rbd:a//b", "empty"),
            ("rbd:a/b@", "empty"),
            ("rbd:a/b@c@d", "no name"),
            ("rbd:a/b/c/d", "too many"),
            ("rbd://a/b", "too many"),
            ("nbd:a/b", "no name of an RBD image"),
        ] {
            let refusal = ImageName::parse(text).expect_err(text);
            assert!(refusal.message().contains(why) && refusal.message().starts_with(text), "{refusal}");
        }
    }
}
