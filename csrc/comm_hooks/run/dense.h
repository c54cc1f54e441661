// The dense all-reduce as a hook, in the gradients' own element type or a narrower one.
#pragma once

#include <memory>
#include <optional>

#include "comm_hooks/run/hook.h"

namespace q7x2 {

/// `dtype`: the type that is sent; empty: the gradients' own.
std::unique_ptr<Hook> make_dense(const HookContext& context, std::optional<at::ScalarType> dtype);

}  // namespace q7x2
