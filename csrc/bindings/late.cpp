#include "bindings/late.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "backend/plain_tensors.h"
#include "backend/process_group.h"
#include "late/mail.h"
#include "late/quorum.h"

namespace q7x2 {
namespace {

namespace py = pybind11;
using py::literals::operator""_a;

Bytes bytes_of(const at::Tensor& tensor) {
  if (!tensor.device().is_cpu() || tensor.scalar_type() != at::kByte || !is_plain(tensor)) {
    throw py::value_error("expected a contiguous tensor of uint8 on the CPU");
  }
  // Keeps the storage, not the tensor, which may belong to Python.
  const auto kept = std::make_shared<c10::Storage>(tensor.storage());
  auto* const data = static_cast<std::byte*>(tensor.data_ptr());
  return {.data = {kept, data}, .size = tensor.nbytes()};
}

at::Tensor tensor_of(const Bytes& bytes) {
  return at::from_blob(
      bytes.data.get(), {static_cast<int64_t>(bytes.size)}, [kept = bytes.data](void*) {},
      at::kByte);
}

std::optional<at::Tensor> payload_of(const PeerMessage& message) {
  if (message.payload.size == 0) return std::nullopt;
  return tensor_of(message.payload);
}

std::optional<PeerMessage> receive(Mail& mail, double seconds) {
  return mail.receive_within(std::max(0.0, seconds));
}

/// Runs `body` without the GIL. A timeout becomes a TimeoutError in Python.
template <typename Body>
auto or_timeout_error(const Body& body) {
  try {
    const py::gil_scoped_release no_gil;
    return body();
  } catch (const QuorumTimeout& error) {
    PyErr_SetString(PyExc_TimeoutError, error.what());
    throw py::error_already_set();
  }
}

using Contributions = std::map<int, std::pair<at::Tensor, double>>;
using Closed = std::tuple<int64_t, Contributions, std::optional<at::Tensor>, int64_t>;

Closed tuple_of(const Quorum::Closed& closed) {
  Contributions contributions;
  for (const auto& [rank, each] : closed.contributions) {
    contributions[rank] = {tensor_of(each.data), each.weight};
  }
  std::optional<at::Tensor> state;
  if (closed.state) state = tensor_of(*closed.state);
  return {closed.mask, std::move(contributions), std::move(state), closed.step};
}

std::shared_ptr<Quorum> make_quorum(std::shared_ptr<Mail> mail,
                                    const std::pair<size_t, size_t>& lengths,
                                    std::function<bool(int64_t)> is_enough,
                                    std::function<at::Tensor()> state) {
  return std::make_shared<Quorum>(
      std::move(mail),
      Quorum::Settings{.least_bytes = lengths.first,
                       .most_bytes = lengths.second,
                       .is_enough = std::move(is_enough),
                       .state = [state = std::move(state)] { return bytes_of(state()); }});
}

void bind_mail(py::module_& module) {
  py::class_<PeerMessage>(module, "PeerMessage", "A message that has arrived.")
      .def(py::init([](int sender, std::vector<int64_t> header) {
             return PeerMessage{.sender = sender, .header = std::move(header), .payload = {}};
           }),
           "sender"_a, "header"_a)
      .def_readonly("sender", &PeerMessage::sender)
      .def_readonly("header", &PeerMessage::header)
      .def_property_readonly("payload", &payload_of);

  py::class_<MessageQueue, std::shared_ptr<MessageQueue>>(module, "MessageQueue",
                                                          "What has arrived in some Mails.")
      .def(py::init([](ProcessGroupQ7x2& group, bool drives) {
             return std::make_shared<MessageQueue>(
                 group.group_pointer(),
                 drives ? MessageQueue::Reader::kDrives : MessageQueue::Reader::kSleeps);
           }),
           "group"_a, "drives"_a, py::keep_alive<1, 2>())
      .def("put", &MessageQueue::put, "message"_a, py::call_guard<py::gil_scoped_release>(),
           "Any thread: add a message of this rank itself.");

  py::class_<Mail, std::shared_ptr<Mail>>(module, "Mail", "Messages from any rank to any other.")
      .def(py::init([](ProcessGroupQ7x2& group, size_t width, std::shared_ptr<MessageQueue> queue,
                       std::optional<size_t> most_sends) {
             const py::gil_scoped_release no_gil;
             return Mail::make(group.group_pointer(), width, std::move(queue),
                               most_sends.value_or(std::numeric_limits<size_t>::max()));
           }),
           "group"_a, "width"_a, "queue"_a, "most_sends"_a, py::keep_alive<1, 2>())
      .def(
          "send",
          [](Mail& mail, int peer, const std::vector<int64_t>& header,
             const std::optional<at::Tensor>& payload) {
            const Bytes bytes = payload ? bytes_of(*payload) : Bytes();
            const py::gil_scoped_release no_gil;
            mail.send(peer, header, bytes);
          },
          "peer"_a, "header"_a, "payload"_a = py::none(),
          "Begin to send; a message to a rank that takes none for long is dropped.")
      .def("receive", &receive, "seconds"_a, py::call_guard<py::gil_scoped_release>(),
           "The next message of the queue; None if none has come, or only a part of one.")
      .def("finish_sends", &Mail::finish_sends, py::call_guard<py::gil_scoped_release>(),
           "Wait until all that was sent has been taken.");
}

}  // namespace

void bind_late(py::module_& module) {
  bind_mail(module);
  py::class_<Quorum, std::shared_ptr<Quorum>> quorum(module, "Quorum",
                                                     "Steps of ranks that wait for none.");
  quorum.attr("WIDTH") = Quorum::kWidth;
  quorum
      .def(py::init(&make_quorum), "mail"_a, "lengths"_a, "is_enough"_a, "state"_a,
           py::keep_alive<1, 2>())
      .def_property_readonly("step", &Quorum::step)
      .def("resume", &Quorum::resume, "step"_a,
           "Begin with this step, equal on all ranks; RuntimeError after the first message.")
      .def(
          "set_timing",
          [](Quorum& self, double grace, double takeover, double timeout) {
            self.set_timing({.grace = grace, .takeover = takeover, .timeout = timeout});
          },
          "grace"_a, "takeover"_a, "timeout"_a)
      .def(
          "close",
          [](Quorum& self, const at::Tensor& data, double weight) {
            const Bytes bytes = bytes_of(data);
            return or_timeout_error([&] { return tuple_of(self.close({bytes, weight})); });
          },
          "data"_a, "weight"_a, "Take part in the current step until it is closed.")
      .def(
          "follow",
          [](Quorum& self, double patience) {
            return or_timeout_error([&]() -> std::optional<Closed> {
              const std::optional<Quorum::Closed> closed = self.follow(patience);
              if (!closed) return std::nullopt;
              return tuple_of(*closed);
            });
          },
          "patience"_a, "Help to close the current step without a contribution.")
      .def("serve", &Quorum::serve, py::call_guard<py::gil_scoped_release>(),
           "Give this rank's state to ranks that are behind, if it is this rank's turn.")
      .def(
          "finish", [](Quorum& self) { or_timeout_error([&] { self.finish(); }); },
          "Wait until all ranks have called it.");
}

}  // namespace q7x2
