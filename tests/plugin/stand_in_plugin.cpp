// A plugin whose GPU is the CPU: what the loader and the engine do with one can be tested where there is none.
#include <pthread.h>
#include <signal.h>

#include "kernels/cuda_abi.h"

namespace tailrace {
namespace {

Expected<std::unique_ptr<Device>> create_device(const CudaDeviceOptions& options) {
  if (options.index != 0) return fail(StatusCode::kInvalidArgument, "there is no stand-in " + std::to_string(options.index));
  return create_cpu_device({});
}

Expected<std::string> probe(const CudaDeviceOptions& options) {
  if (options.index != 0) return fail(StatusCode::kInvalidArgument, "there is no stand-in " + std::to_string(options.index));
  sigset_t blocked;  // as the threads that a driver starts here would inherit it
  pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  return std::string(sigismember(&blocked, SIGTERM) ? "a stand-in" : "a stand-in open to SIGTERM");
}

std::unique_ptr<Backend> create_backend(Device&, const BackendOptions& options) { return create_cpu_backend(options); }

// Sees one launch and no other call.
class OneLaunch : public CallWatch {
 public:
  void begin(pthread_t) override {}
  std::vector<DriverCall> end() override { return {{"cuGraphLaunch", 1}}; }
};

Expected<std::unique_ptr<CallWatch>> watch_calls() { return std::unique_ptr<CallWatch>(new OneLaunch()); }

// Sees one kernel.
class OneKernel : public KernelTrace {
 public:
  void begin() override {}
  std::vector<KernelRun> end() override { return {{.name = "a_kernel", .begin_ns = 0, .end_ns = 1000}}; }
};

Expected<std::unique_ptr<KernelTrace>> trace_kernels() { return std::unique_ptr<KernelTrace>(new OneKernel()); }

// Finds one choice, of the first shape.
Expected<TuningTable> tune(Device&, const std::vector<TuneShape>& shapes, const std::function<void(const std::string&)>& print) {
  print("a candidate");
  TuningTable table;
  table.mixed = {{{shapes[0].head_dim, 8, shapes[0].window > 0}, {7, 2, 70}}};
  return table;
}

const CudaPlugin kPlugin{.abi = cuda_plugin_abi(),
                         .create_device = create_device,
                         .probe = probe,
                         .create_backend = create_backend,
                         .watch_calls = watch_calls,
                         .trace_kernels = trace_kernels,
                         .tune = tune};

}  // namespace
}  // namespace tailrace

extern "C" const tailrace::CudaPlugin* tailrace_cuda_plugin() { return &tailrace::kPlugin; }
