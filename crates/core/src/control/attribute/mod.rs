//! Attributes: the control plane's one table.
//!
//! An attribute is declared once, as a [`Spec`]: name, type with range, unit, role, default, help. From the declaration come
//! keys of configuration files, command-line options, the checks of what is written, the text that is shown, and the tables
//! in the manual. A layer adds how it is read and changed, which makes it an [`Attribute`] of a [`Table`].
//!
//! | file | holds |
//! | --- | --- |
//! | [`value`] | [`Value`]: what an attribute is set to or shows |
//! | [`spec`] | [`Spec`]: the declaration |
//! | [`reading`] | values out of text, checked; the words of a refusal |
//! | [`text`] | values as text, for people and in the kernel's form |
//! | [`table`] | [`Attributes`] of a part, as a [`Table`] of rows |

pub mod reading;
pub mod spec;
pub mod table;
pub mod text;
pub mod value;

pub use spec::{Column, Preset, Role, Spec, Switch, Type, Unit, When};
pub use table::{Attribute, Attributes, Table};
pub use value::{Excerpt, Value};
