// A step reaches no arithmetic of ATen's past the kernel layer: what a dry run rests on, too.
#include <ATen/record_function.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <mutex>
#include <set>
#include <string>

#include "tests/plan/planned_run.h"

namespace steppe::testing {
namespace {

// Names of the ATen operators that are called while it lives, on any thread.
class OperatorsCalled {
 public:
  OperatorsCalled() {
    names().clear();
    handle_ = at::addGlobalCallback(at::RecordFunctionCallback([](const at::RecordFunction& called) {
                                      const std::lock_guard lock(mutex());
                                      names().insert(called.name());
                                      return std::unique_ptr<at::ObserverContext>();
                                    }).scopes({at::RecordScope::FUNCTION}));
  }
  ~OperatorsCalled() { at::removeCallback(handle_); }

  static std::set<std::string>& names() {
    static std::set<std::string> all;
    return all;
  }

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  at::CallbackHandle handle_;
};

const std::set<std::string> kEmptyAndViews = {
    "aten::alias",     "aten::as_strided", "aten::detach",  "aten::empty",
    "aten::expand",    "aten::narrow",     "aten::permute", "aten::select",
    "aten::slice",     "aten::squeeze",    "aten::t",       "aten::transpose",
    "aten::unflatten", "aten::unsqueeze",  "aten::view",    "aten::empty.memory_format",
};

TEST(DryStep, ReachesNoOperatorOfATenPastTheKernelLayer) {
  for (const auto& planned : planned_runs()) {
    const auto run = small_recipe(planned);
    std::set<std::string> past;
    {
      const OperatorsCalled called;
      plan::dry_run(run, {.world_size = planned.world_size}, 0);
      for (const auto& name : OperatorsCalled::names()) {
        if (!kEmptyAndViews.contains(name)) past.insert(name);
      }
    }
    EXPECT_TRUE(OperatorsCalled::names().contains("aten::empty"));
    EXPECT_TRUE(past.empty()) << planned.name << ": " << fmt::format("{}", fmt::join(past, ", "));
  }
}

}  // namespace
}  // namespace steppe::testing
