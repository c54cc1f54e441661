#pragma once

#include <pybind11/pybind11.h>

namespace q7x2 {

/// Adds LedgerFeed and ledger_stats to `module`.
void bind_ledger_feed(pybind11::module_& module);

}  // namespace q7x2
