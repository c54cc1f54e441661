// Converts errors about arguments to Python's ValueError.
#pragma once

#include <utility>

#include <pybind11/pybind11.h>

#include "base/error.h"

namespace q7x2 {

/// Returns `body()`. If it throws Error(kInvalidArgument), that becomes a ValueError.
template <typename Body>
auto or_value_error(Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument) throw;
    throw pybind11::value_error(error.what());
  }
}

}  // namespace q7x2
