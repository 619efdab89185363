//! Deliberate defects that a test on one thread notices, run by the checker of threads because its build has them.

use super::*;
use crate::zram::tests::memory::pressure;
use crate::zram::tests::spilling::{attaching, returning};
use crate::zram::tests::{lending, parallel, second_chance};

/// One order is all there is; the checker makes half as many by each of its ways.
const ORDERS: usize = 2;

macro_rules! noticed {
    ($($finds:ident: $module:ident::$test:ident, $mutant:literal;)*) => {
        /// The tests, as models.
        mod models {
            use super::*;

            $(
                #[test]
                pub(super) fn $finds() {
                    every_order(ORDERS, $module::$test);
                }
            )*
        }

        $(
            #[test]
            fn $finds() {
                finds($mutant, models::$finds);
            }
        )*
    };
}

noticed! {
    pages_that_were_brought_back_and_cannot_leave: returning::pages_that_reads_brought_back_leave_again_for_writes,
        "zram: what a read brought back cannot leave";
    pages_that_are_brought_back_above_the_watermark: returning::nothing_is_brought_back_above_the_high_watermark,
        "zram: bring back above the watermark";
    write_back_that_takes_no_notice_of_reads: returning::a_page_that_is_being_read_from_the_file_holds_write_back_back,
        "zram: reads do not hold write-back back";
    a_second_chance_that_is_taken: second_chance::compaction_takes_it_from_none,
        "zram: a page that is put back has lost its second chance";
    a_limit_of_the_server_that_is_ignored: pressure::pages_leave_at_the_watermark_of_the_limit_that_is_nearer,
        "zram: --memory is ignored once mem_limit is set";
    assistants_that_are_not_throttled: parallel::what_assistants_store_counts_as_the_writers,
        "zram: what assistants store is not throttled";
    a_lent_read_that_skips_a_page: lending::a_lent_read_is_whole_whoever_makes_its_slices,
        "zram: skip a page between slices of a lent read";
    a_lent_read_without_what_is_missing: lending::a_lent_read_has_what_lies_in_the_spill_file,
        "zram: answer a lent read without what is missing";
    a_daily_limit_that_forgets_a_file: attaching::the_bytes_of_a_day_are_counted_in_every_file,
        "zram: the daily limit forgets a new file";
}
