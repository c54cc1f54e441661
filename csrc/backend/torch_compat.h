// Every difference between the torch versions that q7x2 builds against, and nothing else.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Utils.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/version.h>

#if TORCH_VERSION_MAJOR < 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 11)
#error "q7x2 needs torch 2.11 or newer"
#endif

namespace q7x2::compat {

// Named NCCLPreMulSumSupplement before 2.13, which keeps that name as an alias.
using PreMulSumSupplement = c10d::NCCLPreMulSumSupplement;

// How a coalesced reduce-scatter is called in a Work; 2.13 gave it a name of its own.
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13
inline constexpr auto kReduceScatterCoalesced = c10d::OpType::REDUCE_SCATTER_TENSOR_COALESCED;
#else
inline constexpr auto kReduceScatterCoalesced = c10d::OpType::COALESCED;
#endif

}  // namespace q7x2::compat
