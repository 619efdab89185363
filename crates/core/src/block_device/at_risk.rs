//! What a crash would take of a part.

/// A part that acknowledges writes before they are durable.
pub trait AtRisk: Send + Sync {
    /// Bytes that it has acknowledged and not made durable yet, in its own blocks: what the part below has received is that part's to count.
    /// More while data moves there. A few loads.
    fn at_risk_bytes(&self) -> u64;
}
