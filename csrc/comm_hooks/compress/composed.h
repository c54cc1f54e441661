// Several hooks in one: each reduces the parameters that are its own.
#pragma once

#include <memory>
#include <vector>

#include "comm_hooks/run/hook.h"

namespace q7x2 {

/// `owners`: by parameter number, the position of its hook in `hooks`; the last beyond its end. The
/// state of hook i has the prefix "i." before its kinds.
std::unique_ptr<Hook> make_composed(const HookContext& context, const std::vector<MakeHook>& hooks,
                                    std::vector<size_t> owners);

}  // namespace q7x2
