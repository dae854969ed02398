//! Moves a matrix by tensor maps, one box at a time, with the module moved.rs of the kernel of the same name.
#[path = "moved.rs"]
mod moved;

use std::ffi::c_void;
use std::ptr;

#[link(name = "cuda")]
extern "C" {
    fn cuInit(flags: u32) -> i32;
    fn cuDeviceGet(device: *mut i32, ordinal: i32) -> i32;
    fn cuDevicePrimaryCtxRetain(context: *mut *mut c_void, device: i32) -> i32;
    fn cuCtxSetCurrent(context: *mut c_void) -> i32;
    fn cuCtxSynchronize() -> i32;
    fn cuMemAlloc_v2(address: *mut u64, nbytes: usize) -> i32;
    fn cuMemcpyHtoD_v2(address: u64, from: *const c_void, nbytes: usize) -> i32;
    fn cuMemcpyDtoH_v2(to: *mut c_void, address: u64, nbytes: usize) -> i32;
    fn cuMemsetD32_v2(address: u64, value: u32, count: usize) -> i32;
}

const ROWS: usize = 33;
const COLUMNS: usize = 40;
const PITCH: usize = 48;

fn check(status: i32) {
    assert_eq!(status, 0, "{}", moved::status_text(status));
}

fn main() {
    let given: Vec<f32> = (0..ROWS * PITCH).map(|n| n as f32).collect();
    let mut found = vec![0f32; ROWS * PITCH];
    let nbytes = ROWS * PITCH * 4;
    let mut args = moved::Args::default();
    let grid = [COLUMNS.div_ceil(16) as u32, ROWS.div_ceil(8) as u32, 1];
    let mut wrong = 0;
    unsafe {
        let (mut device, mut context) = (0, ptr::null_mut());
        check(cuInit(0));
        check(cuDeviceGet(&mut device, 0));
        check(cuDevicePrimaryCtxRetain(&mut context, device));
        check(cuCtxSetCurrent(context));
        let kernel = moved::Kernel::load().unwrap();
        check(cuMemAlloc_v2(&mut args.X, nbytes));
        check(cuMemAlloc_v2(&mut args.Y, nbytes));
        check(cuMemcpyHtoD_v2(args.X, given.as_ptr().cast(), nbytes));
        args.X_shape = [ROWS as u64, COLUMNS as u64];
        args.X_strides = [PITCH as u64 * 4, 4];
        args.Y_shape = args.X_shape;
        args.Y_strides = args.X_strides;
        let whole = args.Y;
        // The second launch has other tensors: one row less, one row further.
        for moved_by in 0..2 {
            check(cuMemsetD32_v2(whole, 0, ROWS * PITCH));
            kernel.launch(&args, grid, ptr::null_mut()).unwrap();
            kernel.launch(&args, grid, ptr::null_mut()).unwrap(); // the maps of the launch before
            check(cuCtxSynchronize());
            check(cuMemcpyDtoH_v2(found.as_mut_ptr().cast(), whole, nbytes));
            for (n, &value) in found.iter().enumerate() {
                let inside = n / PITCH >= moved_by && n % PITCH < COLUMNS;
                wrong += usize::from(value != if inside { given[n - moved_by * PITCH] } else { 0.0 });
            }
            args.X_shape[0] = ROWS as u64 - 1;
            args.Y_shape[0] = ROWS as u64 - 1;
            args.Y += PITCH as u64 * 4;
        }
        println!("{} wrong", wrong);
        args.X_strides[0] = 7;
        match kernel.launch(&args, grid, ptr::null_mut()) {
            Err(moved::Error::Driver("cuTensorMapEncodeTiled", status, _)) => println!("strides of no map: {}", status),
            other => println!("{:?}", other),
        }
        args.X = 8;
        println!("{}", args.check().unwrap_err());
    }
}
