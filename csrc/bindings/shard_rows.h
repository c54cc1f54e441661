// FSDP's rows of shards, on tensors.
#pragma once

#include <pybind11/pybind11.h>

namespace q7x2 {

/// Adds ShardRows, same_bits and subtract to `module`.
void bind_shard_rows(pybind11::module_& module);

}  // namespace q7x2
