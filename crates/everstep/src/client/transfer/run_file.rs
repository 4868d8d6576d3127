//! A run as one file: what `export` writes, and `import` and `testing::replay` read.
//!
//! ```text
//! magic        the 12 bytes `everstep-run`
//! version      u16, 1
//! id           16 bytes
//! workflow     string
//! version      uint
//! key          optional<string>
//! pool         string
//! status       enum RunStatus
//! ending       optional<enum RunStatus>
//! generation   uint
//! created_at   int                     milliseconds since the Unix epoch, as all times here
//! updated_at   int
//! available_at, deadline_at, finished_at   optional<int> each
//! attempts, recoveries, inbox_seq, last_number   uint each
//! cancel       optional<bool>          whether with rollback
//! waiting      optional<string>
//! tags         list<{ name: string, value: string }>
//! parent       optional<16 bytes>
//! input        data
//! output, error   optional<data> each
//! history      list<{ key: data, value: data }>
//! inbox        list<{ seq: uint, kind: enum InboxKind, name: string, body: data,
//!                     wait: optional<data>, request: optional<16 bytes>, sent_at: int }>
//! state        list<{ key: string, value: data }>
//! ```
//!
//! Payloads and entries are in it as they are stored, in their own formats.

use uuid::Uuid;

use crate::{
    codec::{
        DecodeError,
        bare::{Reader, Writer},
    },
    commit::{CancelRequest, ImportedRun, InboxKind, InboxRow, Put, RunRow, RunStatus},
    run_id::RunId,
    time::Timestamp,
};

const MAGIC: &[u8; 12] = b"everstep-run";
const VERSION: u16 = 1;

/// The file of a run.
pub(crate) fn encode_run(run: &ImportedRun) -> Vec<u8> {
    let mut out = Vec::new();
    let mut writer = Writer::new(&mut out);
    writer.fixed(MAGIC);
    writer.u16(VERSION);
    write_row(&mut writer, &run.row);
    writer.list(&run.history, |writer, put| {
        writer.data(&put.key);
        writer.data(&put.value);
    });
    writer.list(&run.inbox, write_message);
    writer.list(&run.state, |writer, (key, value)| {
        writer.string(key);
        writer.data(value);
    });
    out
}

fn write_row(writer: &mut Writer<'_>, row: &RunRow) {
    writer.fixed(row.id.as_uuid().as_bytes());
    writer.string(&row.workflow);
    writer.uint(u64::from(row.version));
    writer.optional(row.key.as_deref(), Writer::string);
    writer.string(&row.pool);
    writer.uint(u64::from(row.status.code()));
    writer.optional(row.ending, |writer, ending| {
        writer.uint(u64::from(ending.code()));
    });
    writer.uint(u64::from(row.generation));
    writer.int(row.created_at.as_millis());
    writer.int(row.updated_at.as_millis());
    for at in [row.available_at, row.deadline_at, row.finished_at] {
        writer.optional(at, |writer, at| writer.int(at.as_millis()));
    }
    writer.uint(u64::from(row.attempts));
    writer.uint(u64::from(row.recoveries));
    writer.uint(row.inbox_seq);
    writer.uint(row.last_number);
    writer.optional(row.cancel_requested, |writer, cancel| {
        writer.bool(cancel.rollback);
    });
    writer.optional(row.waiting.as_deref(), Writer::string);
    writer.list(&row.tags, |writer, (name, value)| {
        writer.string(name);
        writer.string(value);
    });
    writer.optional(row.parent, |writer, parent| {
        writer.fixed(parent.as_uuid().as_bytes());
    });
    writer.data(&row.input);
    for bytes in [&row.output, &row.error] {
        writer.optional(bytes.as_deref(), Writer::data);
    }
}

fn write_message(writer: &mut Writer<'_>, message: &InboxRow) {
    writer.uint(message.seq);
    writer.uint(u64::from(message.kind.code()));
    writer.string(&message.name);
    writer.data(&message.body);
    writer.optional(message.wait.as_deref(), Writer::data);
    writer.optional(message.request, |writer, request| {
        writer.fixed(request.as_bytes());
    });
    writer.int(message.sent_at.as_millis());
}

/// The run whose file is `bytes`.
pub(crate) fn decode_run(bytes: &[u8]) -> Result<ImportedRun, DecodeError> {
    let mut reader = Reader::new(bytes);
    if !bytes.starts_with(MAGIC) {
        return Err(reader.invalid(0, "this is not a run that everstep has exported"));
    }
    let _: [u8; 12] = reader.fixed()?;
    match reader.u16()? {
        VERSION => {}
        found => {
            return Err(DecodeError::UnknownVersion {
                what: "an exported run",
                found,
                known: VERSION,
            });
        }
    }
    let row = read_row(&mut reader)?;
    let data = |reader: &mut Reader<'_>| reader.data().map(<[u8]>::to_vec);
    let run = ImportedRun {
        row,
        history: reader.list(|reader| Ok(Put { key: data(reader)?, value: data(reader)? }))?,
        inbox: reader.list(read_message)?,
        state: reader.list(|reader| Ok((reader.string()?.to_owned(), data(reader)?)))?,
    };
    reader.finish()?;
    Ok(run)
}

fn read_row(reader: &mut Reader<'_>) -> Result<RunRow, DecodeError> {
    let data = |reader: &mut Reader<'_>| reader.data().map(<[u8]>::to_vec);
    let text = |reader: &mut Reader<'_>| reader.string().map(str::to_owned);
    let time = |reader: &mut Reader<'_>| reader.int().map(Timestamp::from_millis);
    let id = read_id(reader)?;
    let workflow = reader.string()?.into();
    let version = reader.uint32()?;
    let key = reader.optional(text)?;
    let pool = reader.string()?.into();
    let status = read_status(reader)?;
    let ending = reader.optional(read_status)?;
    let generation = reader.uint32()?;
    let (created_at, updated_at) = (time(reader)?, time(reader)?);
    let (available_at, deadline_at, finished_at) =
        (reader.optional(time)?, reader.optional(time)?, reader.optional(time)?);
    Ok(RunRow {
        id,
        workflow,
        version,
        key,
        pool,
        shard: id.shard_in(crate::pool::PoolNo::DEFAULT),
        status,
        ending,
        generation,
        available_at,
        deadline_at,
        created_at,
        updated_at,
        finished_at,
        attempts: reader.uint32()?,
        recoveries: reader.uint32()?,
        inbox_seq: reader.uint()?,
        last_number: reader.uint()?,
        cancel_requested: reader.optional(Reader::bool)?.map(|rollback| CancelRequest { rollback }),
        waiting: reader.optional(text)?,
        tags: reader.list(|reader| Ok((text(reader)?, text(reader)?)))?,
        trace: None,
        parent: reader.optional(read_id)?,
        resume_at: None,
        input: data(reader)?,
        output: reader.optional(data)?,
        error: reader.optional(data)?,
    })
}

fn read_id(reader: &mut Reader<'_>) -> Result<RunId, DecodeError> {
    let at = reader.at();
    let uuid = Uuid::from_bytes(reader.fixed()?);
    RunId::from_uuid(uuid)
        .ok_or_else(|| reader.invalid(at, format!("{uuid} is not the id of a run")))
}

fn read_status(reader: &mut Reader<'_>) -> Result<RunStatus, DecodeError> {
    reader.code(RunStatus::from_code, "status of a run")
}

fn read_message(reader: &mut Reader<'_>) -> Result<InboxRow, DecodeError> {
    Ok(InboxRow {
        seq: reader.uint()?,
        kind: reader.code(InboxKind::from_code, "kind of message")?,
        name: reader.string()?.to_owned(),
        body: reader.data()?.to_vec(),
        wait: reader.optional(|reader| reader.data().map(<[u8]>::to_vec))?,
        request: reader.optional(|reader| reader.fixed().map(Uuid::from_bytes))?,
        sent_at: Timestamp::from_millis(reader.int()?),
        // What it would become there, were it not read, is a matter of the store it came from.
        on_end: None,
    })
}
