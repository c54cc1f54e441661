// What all compressing hooks can be asked for.
#pragma once

#include <cstddef>
#include <vector>

#include "comm_hooks/compress/gradient_transform.h"
#include "comm_hooks/compress/option_fields.h"
#include "comm_hooks/compress/schedule.h"

namespace q7x2 {

/// `compressing_fields` says what each option means.
struct CompressingOptions {
  FullPrecision full_precision;
  bool error_feedback = true;
  TransformOptions transform;
  double clip_norm = 0;
  /// By parameter number: its gradient is never compressed.
  std::vector<bool> whole;

  bool is_whole(size_t parameter) const { return parameter < whole.size() && whole[parameter]; }
};

/// The options, `whole` excepted, with the names that Python has for them.
OptionFields<CompressingOptions> compressing_fields();

}  // namespace q7x2
