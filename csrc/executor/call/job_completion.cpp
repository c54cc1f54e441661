#include "executor/call/job_completion.h"

#include <utility>

#include "transport/group/group.h"
#include "transport/run/runtime.h"
#include "transport/task/completion_queue.h"

namespace q7x2 {
namespace {

class JobCompletion final : public Completion {
 public:
  JobCompletion(std::shared_ptr<CompletionQueue> queue, Job& job, std::weak_ptr<Task> task)
      : Completion(std::move(queue)), job_(job), task_(std::move(task)) {}

 private:
  // A task with a running job lives as long as its runtime. So if the task is gone, the runtime is
  // gone too.
  void deliver(Locked& locked) override {
    std::shared_ptr<Task> task = task_.lock();
    if (!task) return;
    task->group().runtime().jobs().completed(locked, job_);
    locked.drop_later(std::move(task));
  }

  Job& job_;
  const std::weak_ptr<Task> task_;
};

}  // namespace

void complete_after(WorkStream& stream, Job& job, const std::shared_ptr<Task>& task) {
  auto completion =
      std::make_unique<JobCompletion>(task->group().runtime().completions(), job, task);
  stream.with(
      [&] { Completion::post_after(stream.calls(), stream.handle(), std::move(completion)); });
}

}  // namespace q7x2
