// What all compressing hooks can be asked for.
#pragma once

#include <cstddef>
#include <vector>

#include "comm_hooks/schedule.h"
#include "comm_hooks/signal.h"

namespace q7x2 {

struct CompressingOptions {
  FullPrecision full_precision;
  /// What a compressor loses is added to the next gradient.
  bool error_feedback = true;
  SignalOptions signal;
  /// The largest norm (L2) that a gradient may have on one rank, before it is divided by the number
  /// of ranks; 0: any.
  double clip_norm = 0;
  /// By parameter number: its gradient is never compressed.
  std::vector<bool> whole;

  bool is_whole(size_t parameter) const { return parameter < whole.size() && whole[parameter]; }
};

}  // namespace q7x2
