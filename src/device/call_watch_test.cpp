#include "device/call_watch.h"

#include <gtest/gtest.h>

namespace tailrace {
namespace {

TEST(CallWatch, driver_calls_by_what_they_do) {
  for (const char* name : {"cuStreamSynchronize", "cuStreamSynchronize_ptsz", "cuCtxSynchronize_v2",
                           "cuEventSynchronize", "cuMemcpy", "cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2_ptds", "cuMemcpy2D_v2", "cuMemsetD8_v2",
                           "cuMemcpyAsync (pageable)", "cuMemcpyHtoDAsync_v2 (pageable)"}) {
    EXPECT_EQ(classify_driver_call(name), CallKind::kWaits) << name;
  }
  for (const char* name :
       {"cuMemAlloc_v2", "cuMemAllocAsync", "cuMemFree_v2", "cuMemFreeHost", "cuMemHostAlloc", "cuMemHostRegister_v2",
        "cuMemHostUnregister", "cuMemCreate", "cuMemRelease", "cuMemMap", "cuMemUnmap", "cuModuleLoadData",
        "cuModuleUnload",
        "cuLibraryLoadData", "cuFuncLoad", "cuGraphInstantiateWithFlags", "cuGraphExecDestroy", "cuStreamCreate",
        "cuEventCreate", "cuEventDestroy_v2", "cuDevicePrimaryCtxRetain", "cuMemPoolTrimTo", "cuLinkAddData"}) {
    EXPECT_EQ(classify_driver_call(name), CallKind::kClaims) << name;
  }
  for (const char* name :
       {"cuGraphLaunch", "cuLaunchKernel", "cuLaunchKernelEx_ptsz", "cuMemcpyAsync", "cuMemcpyHtoDAsync_v2",
        "cuMemsetD8Async", "cuEventRecord", "cuEventQuery", "cuStreamQuery", "cuStreamWaitEvent",
        "cuStreamWaitValue64_v2",
        "cuCtxGetCurrent", "cuCtxSetCurrent", "cuMemGetAllocationGranularity", "cuModuleGetLoadingMode",
        "cuTensorMapEncodeTiled", "cuFuncIsLoaded", "cuFuncSetAttribute"}) {
    EXPECT_EQ(classify_driver_call(name), CallKind::kQueues) << name;
  }
}

}  // namespace
}  // namespace tailrace
