//! Entries by key: what a commit puts and removes, in byte order.

use super::*;

pub(super) const CHECKS: &[(&str, Check)] = checks![
    entries_come_back_in_byte_order,
    a_put_replaces_what_was_there,
    a_range_removes_exactly_its_keys,
    deletes_come_before_puts,
    history_is_paged_by_key,
    histories_do_not_mix,
    big_values_survive,
];

fn entries_come_back_in_byte_order(world: &World) {
    let id = world.running();
    let keys: [&[u8]; 8] = [b"\xff", b"b", b"a\0", b"a", b"", b"\0", b"a\xff", b"\x7f\x80"];
    let puts = keys.iter().map(|key| put(key, key)).collect();
    world.accept(Commit { puts, ..commit(id) });
    let mut sorted = keys.map(<[u8]>::to_vec).to_vec();
    sorted.sort();
    assert_eq!(world.keys(id), sorted);
}

fn a_put_replaces_what_was_there(world: &World) {
    let id = world.running();
    world.accept(Commit { puts: vec![put("a", "1"), put("a", "2")], ..commit(id) });
    world.accept(Commit { puts: vec![put("a", "3")], ..commit(id) });
    let history = world.store.history(id.no(), None, 10).expect("history");
    assert_eq!(history, [put("a", "3")]);
}

fn a_range_removes_exactly_its_keys(world: &World) {
    let id = world.running();
    let keys: [&[u8]; 9] =
        [b"a", b"b", b"b\0", b"b\0\0", b"b\x01", b"b\xff", b"b\xff\xff", b"c", b"\xff"];
    let puts = keys.iter().map(|key| put(key, "")).collect();
    world.accept(Commit { puts, ..commit(id) });
    let deletes = vec![range(b"b\0", b"b\xff"), range("x", "a"), range("c", "c")];
    world.accept(Commit { deletes, ..commit(id) });
    let left: [&[u8]; 6] = [b"a", b"b", b"b\xff", b"b\xff\xff", b"c", b"\xff"];
    assert_eq!(world.keys(id), left);
    world.accept(Commit { deletes: vec![range("", b"\xff")], ..commit(id) });
    assert_eq!(world.keys(id), [b"\xff"]);
}

fn deletes_come_before_puts(world: &World) {
    let id = world.running();
    world.accept(Commit { puts: vec![put("a1", "old"), put("a2", "old")], ..commit(id) });
    let (deletes, puts) = (vec![range("a", "b")], vec![put("a1", "new")]);
    world.accept(Commit { deletes, puts, ..commit(id) });
    let history = world.store.history(id.no(), None, 10).expect("history");
    assert_eq!(history, [put("a1", "new")]);
}

fn history_is_paged_by_key(world: &World) {
    let id = world.running();
    let puts = (0..25u8).map(|i| put([i], [i])).collect::<Vec<_>>();
    world.accept(Commit { puts: puts.clone(), ..commit(id) });
    let (mut read, mut after) = (Vec::new(), None::<Vec<u8>>);
    loop {
        let page = world.store.history(id.no(), after.as_deref(), 10).expect("history");
        assert!(page.len() <= 10);
        let Some(last) = page.last() else { break };
        after = Some(last.key.clone());
        read.extend(page);
    }
    assert_eq!(read, puts);
    assert!(world.store.history(id.no(), None, 0).expect("history").is_empty());
}

fn histories_do_not_mix(world: &World) {
    let (first, second) = (world.running(), world.running());
    world.accept(Commit { puts: vec![put("a", "first")], ..commit(first) });
    world.accept(Commit { puts: vec![put("a", "second"), put("b", "")], ..commit(second) });
    world.accept(Commit { deletes: vec![range("", "z")], ..commit(second) });
    assert_eq!(world.keys(first), [b"a"]);
    assert!(world.keys(second).is_empty());
}

fn big_values_survive(world: &World) {
    let id = world.running();
    let value = (0..3_000_000u32).map(|i| (i % 251) as u8).collect::<Vec<_>>();
    world.accept(Commit { puts: vec![put("big", &value)], ..commit(id) });
    assert!(world.store.history(id.no(), None, 1).expect("history")[0].value == value);
}
