// Combines several hooks: each reduces its own parameters.
#pragma once

#include <memory>
#include <vector>

#include "comm_hooks/run/hook.h"

namespace q7x2 {

/// `owners`: by parameter number, the index of its hook in `hooks`; parameters beyond its end
/// belong to the last hook. The kinds of state of hook i have the prefix "i.".
std::unique_ptr<Hook> make_composed(const HookContext& context, const std::vector<MakeHook>& hooks,
                                    std::vector<size_t> owners);

}  // namespace q7x2
