#include "transport/stream/stream_options.h"

#include "base/environment.h"
#include "transport/net/silence_limit.h"

namespace q7x2 {

StreamOptions StreamOptions::of_environment() {
  StreamOptions options;
  options.silence = silence_limit();
  options.congestion = environment("Q7X2_CONGESTION");
  return options;
}

}  // namespace q7x2
