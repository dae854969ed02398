// Launches the kernel of host.rs, whose arguments are X, Y, n, int and loop.
#![deny(warnings)]

mod host;

use std::ffi::c_void;
use std::ptr;

#[link(name = "cuda")]
extern "C" {
    fn cuInit(flags: u32) -> i32;
    fn cuDevicePrimaryCtxRetain(context: *mut *mut c_void, device: i32) -> i32;
    fn cuCtxSetCurrent(context: *mut c_void) -> i32;
    fn cuMemAlloc_v2(address: *mut u64, nbytes: usize) -> i32;
    fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, nbytes: usize) -> i32;
    fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, nbytes: usize) -> i32;
}

const N: u32 = 100;

fn main() -> Result<(), host::Error> {
    let mut values: Vec<f32> = (0..N).map(|n| n as f32).collect();
    let nbytes = 4 * values.len();
    let grid = [(N + host::THREADS - 1) / host::THREADS, 1, 1];
    let mut args = host::Args { n: N, int: 0.5, r#loop: -3, ..Default::default() };
    let mut wrong = 0;
    unsafe {
        let (mut context, mut y) = (ptr::null_mut(), 0);
        assert_eq!(cuInit(0) + cuDevicePrimaryCtxRetain(&mut context, 0) + cuCtxSetCurrent(context), 0);
        assert_eq!(cuMemAlloc_v2(&mut args.X, nbytes) + cuMemAlloc_v2(&mut y, nbytes), 0);
        assert_eq!(cuMemcpyHtoD_v2(args.X, values.as_ptr() as *const c_void, nbytes), 0);
        let kernel = host::Kernel::load()?;
        if let Err(why) = kernel.launch(&args, grid, ptr::null_mut()) {
            println!("{}", why);
        }
        args.Y = y;
        kernel.launch(&args, grid, ptr::null_mut())?;
        assert_eq!(cuMemcpyDtoH_v2(values.as_mut_ptr() as *mut c_void, y, nbytes), 0);
    }
    for (n, value) in values.iter().enumerate() {
        wrong += i32::from(*value != n as f32 / 2.0 - 3.0);
    }
    println!("{} of {} wrong", wrong, N);
    Ok(())
}
