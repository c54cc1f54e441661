#include "comm_hooks/run/backward_end.h"

#include <utility>

#include <torch/csrc/autograd/engine.h>

namespace q7x2 {

int current_backward() {
  return torch::autograd::get_current_graph_task_id();
}

void when_backward_ends(std::function<void()> callback) {
  torch::autograd::Engine::get_default_engine().queue_callback(std::move(callback));
}

}  // namespace q7x2
